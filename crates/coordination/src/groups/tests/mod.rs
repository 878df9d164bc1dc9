//! Transcripts and properties of the coordinator.
