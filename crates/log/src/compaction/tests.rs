//! Whole compactions over a simulated disk, watched at every step.

mod kafka_tools;
mod script;
mod simulation;
mod world;
