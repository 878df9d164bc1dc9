//! The states of a transactional id, and the transitions between them.

/// The state of a transactional id, as in a record of `__transaction_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// There is a producer, and no transaction since its id or epoch changed.
    Empty = 0,
    /// A transaction that may get more partitions.
    Ongoing = 1,
    /// A transaction that is committed; its markers are being written.
    PrepareCommit = 2,
    /// A transaction that is aborted; its markers are being written.
    PrepareAbort = 3,
    /// The last transaction was committed.
    CompleteCommit = 4,
    /// The last transaction was aborted.
    CompleteAbort = 5,
    /// The tombstone is in flight. No record has this state.
    Dead = 6,
    /// A transaction is being fenced. It is aborted in the same step, so no record has this state.
    PrepareEpochFence = 7,
}

impl State {
    /// Every state, by rising number.
    pub const ALL: [State; 8] = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
        State::Dead,
        State::PrepareEpochFence,
    ];

    /// The number in records.
    pub const fn code(self) -> i8 {
        self as i8
    }

    /// The state with this number.
    pub fn from_code(code: i8) -> Option<State> {
        State::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The name in DescribeTransactions and ListTransactions.
    pub const fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
            State::Dead => "Dead",
            State::PrepareEpochFence => "PrepareEpochFence",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if `next` may follow.
    pub(crate) const fn may_become(self, next: State) -> bool {
        match next {
            State::Empty | State::Dead => self.is_idle(),
            State::Ongoing => self.is_idle() || matches!(self, State::Ongoing),
            State::PrepareCommit | State::PrepareEpochFence => matches!(self, State::Ongoing),
            State::PrepareAbort => {
                self.is_idle() || matches!(self, State::Ongoing | State::PrepareEpochFence)
            }
            State::CompleteCommit => matches!(self, State::PrepareCommit),
            State::CompleteAbort => matches!(self, State::PrepareAbort),
        }
    }

    /// Returns true if no transaction is running or ending. Only such a transactional id can expire.
    pub(crate) const fn is_idle(self) -> bool {
        matches!(self, State::Empty | State::CompleteCommit | State::CompleteAbort)
    }

    /// Returns true if the outcome of a transaction is decided and its markers are being written.
    pub(crate) const fn is_ending(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_kafkas() {
        for (code, state) in (0..).zip(State::ALL) {
            assert_eq!((state.code(), State::from_code(code)), (code, Some(state)));
            assert_eq!(State::from_name(state.name()), Some(state));
        }
        assert_eq!(
            (State::from_code(8), State::from_code(-1), State::from_name("ongoing")),
            (None, None, None)
        );
    }

    #[test]
    fn states_follow_each_other_as_in_kafka() {
        use State::*;
        let table: [(State, &[State]); 8] = [
            (Empty, &[Empty, CompleteCommit, CompleteAbort]),
            (Ongoing, &[Empty, Ongoing, CompleteCommit, CompleteAbort]),
            (PrepareCommit, &[Ongoing]),
            (PrepareAbort, &[Empty, Ongoing, CompleteCommit, CompleteAbort, PrepareEpochFence]),
            (CompleteCommit, &[PrepareCommit]),
            (CompleteAbort, &[PrepareAbort]),
            (Dead, &[Empty, CompleteCommit, CompleteAbort]),
            (PrepareEpochFence, &[Ongoing]),
        ];
        for (next, previous) in table {
            let may: Vec<State> = State::ALL.into_iter().filter(|state| state.may_become(next)).collect();
            assert_eq!(may, previous, "before {next:?}");
        }
    }
}
