//! Messages that are handled together.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::message::Msg;
use crate::payload::Payload;

/// Messages of one partition by offset. If its handler fails, those that were not [marked](Batch::mark) run again, each
/// alone.
pub struct Batch<P: Payload> {
    messages: Vec<Msg<P>>,
    marks: Marks,
}

/// Which messages of a batch are done: by their place in it.
pub(crate) type Marks = Arc<Mutex<Vec<bool>>>;

impl<P: Payload> Batch<P> {
    pub(crate) fn new(messages: Vec<Msg<P>>, marks: Marks) -> Batch<P> {
        Batch { messages, marks }
    }

    /// The messages, ascending by offset; at least one.
    pub fn messages(&self) -> &[Msg<P>] {
        &self.messages
    }

    /// The message at an index is done, whatever becomes of the others. An index beyond the batch says nothing.
    pub fn mark(&self, index: usize) {
        if let Some(mark) = self.marks.lock().get_mut(index) {
            *mark = true;
        }
    }
}

impl<'a, P: Payload> IntoIterator for &'a Batch<P> {
    type Item = &'a Msg<P>;
    type IntoIter = std::slice::Iter<'a, Msg<P>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.iter()
    }
}

impl<P: Payload> fmt::Debug for Batch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.messages).finish()
    }
}
