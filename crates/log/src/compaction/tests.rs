//! Whole compactions over a simulated disk, watched at every step.

mod script;
mod simulation;
mod world;
