//! What validation and decompression reuse from one batch to the next.

/// Reusable working memory, one per thread. It starts empty, so an idle one costs next to nothing.
#[derive(Debug, Default)]
pub struct Scratch {}

impl Scratch {
    /// Working memory that holds nothing yet.
    pub fn new() -> Scratch {
        Scratch::default()
    }
}
