//! Fetch sessions (KIP-227): the partitions of a consumer are remembered, so that each request names only changes.
//!
//! Pure: no clock, no I/O. A session belongs to one principal, and its id is random, so that others cannot find it.
//! Its partitions rotate, so that those at the end of a full response come first in the next.

use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::RandomState;
use mainstem_records::LeaderEpoch;
use mainstem_wire::messages::fetch_request::{FetchRequest, FetchTopic};
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

/// Session id of requests outside of any session.
pub(crate) const NO_SESSION: i32 = 0;
/// Epoch that opens a session.
const INITIAL_EPOCH: i32 = 0;
/// Epoch that closes a session, or asks for none.
const FINAL_EPOCH: i32 = -1;

/// Time without a request after which a session may be evicted for another (as Kafka's `min.incremental.fetch...`).
const EVICTION_MS: u64 = 120_000;

/// The most partitions in all sessions together, about 100 bytes each. A client without a session names its
/// partitions in every request.
const PARTITIONS_MAX: usize = 200_000;

/// The key of a topic in a request: its name up to version 12, its id from 13.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TopicKey {
    Name(Arc<str>),
    Id(Uuid),
}

/// A partition of a session, as the client last described it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// First offset.
    pub(crate) offset: i64,
    /// The most bytes of it.
    pub(crate) bytes_max: i32,
    /// The leader epoch that the client knows, if it does.
    pub(crate) current_leader_epoch: LeaderEpoch,
    /// The epoch of the record before `offset`, if the client knows it.
    pub(crate) last_fetched_epoch: LeaderEpoch,
    /// The state that the client has seen last; -1 if it has to be sent again.
    sent: Sent,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    high_watermark: i64,
    log_start_offset: i64,
}

const NOTHING_SENT: Sent = Sent { high_watermark: -1, log_start_offset: -1 };

/// A map with an order, hashed fast and with a seed of this process: every fetch looks up its partitions.
type IndexMap<K, V> = indexmap::IndexMap<K, V, RandomState>;

/// A partition by its topic.
pub(crate) type Key = (TopicKey, i32);

/// An open session.
pub(crate) struct Session {
    /// Its id, above 0.
    pub(crate) id: i32,
    /// Its principal.
    principal: Arc<str>,
    epoch: i32,
    by_id: bool,
    partitions: IndexMap<Key, Wanted>,
    /// The rank of the partition with which the next response begins.
    start: usize,
}

/// The partitions of a request, with those of its session.
pub(crate) struct Plan {
    /// The session that the response belongs to.
    pub(crate) session: Option<Arc<Mutex<Session>>>,
    /// True if the response leaves out partitions without changes.
    pub(crate) incremental: bool,
    /// The partitions, in the order in which they are read.
    pub(crate) partitions: Vec<(Key, Wanted)>,
    /// Rank in the session of the first of them. The others follow it, and wrap around the end.
    start: usize,
}

impl Plan {
    /// The session id in the response.
    pub(crate) fn session_id(&self) -> i32 {
        self.session.as_ref().map_or(NO_SESSION, |session| session.lock().id)
    }

    /// Notes in the session, if there is one, the answer for the partition at a rank of the plan. Returns true if the
    /// answer has to be sent.
    pub(crate) fn note_answer(&self, rank: usize, answer: Answer) -> bool {
        let Some(session) = &self.session else { return true };
        let place = (self.start + rank) % self.partitions.len();
        session.lock().note_answer(&self.partitions[rank].0, place, answer) || !self.incremental
    }
}

struct Slot {
    session: Arc<Mutex<Session>>,
    used_ms: u64,
    opened_ms: u64,
    size: usize,
}

/// All sessions of a broker, at most `max.incremental.fetch.session.cache.slots`.
pub(crate) struct FetchSessions {
    slots: HashMap<i32, Slot>,
    /// The number of partitions in all sessions.
    partitions: usize,
    max: usize,
    /// The source of random bits for ids.
    random: fn() -> u32,
}

impl FetchSessions {
    /// An empty cache. Ids are random, so that neither an old client's id nor a guess matches a session.
    pub(crate) fn new(max: usize, random: fn() -> u32) -> Self {
        FetchSessions { slots: HashMap::default(), partitions: 0, max, random }
    }

    /// The number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Reads a request with its session. `by_id`: the request's version names topics by id. A session of another
    /// principal counts as none.
    ///
    /// # Errors
    /// `FETCH_SESSION_ID_NOT_FOUND`, `INVALID_FETCH_SESSION_EPOCH`, `FETCH_SESSION_TOPIC_ID_ERROR`.
    pub(crate) fn plan(
        &mut self,
        request: &FetchRequest<'_>,
        principal: &Arc<str>,
        by_id: bool,
        now_ms: u64,
    ) -> Result<Plan, ErrorCode> {
        let is_theirs = self
            .slots
            .get(&request.session_id)
            .is_some_and(|slot| slot.session.lock().principal == *principal);
        match request.session_epoch {
            INITIAL_EPOCH | FINAL_EPOCH => {
                if is_theirs {
                    self.close(request.session_id);
                }
                // A partition that is named twice counts once, as in Kafka: each entry costs a registration.
                let partitions: IndexMap<_, _> = wanted(&request.topics, by_id).collect();
                let partitions = Vec::from_iter(partitions);
                let opens = request.session_epoch == INITIAL_EPOCH && !partitions.is_empty();
                let session = opens.then(|| self.open(&partitions, principal, by_id, now_ms)).flatten();
                Ok(Plan { session, incremental: false, partitions, start: 0 })
            }
            _ if !is_theirs => Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND),
            epoch => self.resume(request, epoch, by_id, now_ms),
        }
    }

    fn resume(
        &mut self,
        request: &FetchRequest<'_>,
        epoch: i32,
        by_id: bool,
        now_ms: u64,
    ) -> Result<Plan, ErrorCode> {
        let slot = self.slots.get_mut(&request.session_id).ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        let shared = slot.session.clone();
        let mut session = shared.lock();
        if session.epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        session.update(request);
        slot.used_ms = now_ms;
        let before = std::mem::replace(&mut slot.size, session.partitions.len());
        self.partitions = self.partitions - before + slot.size;
        if self.partitions > PARTITIONS_MAX && slot.size > before {
            // The client opens a full session, which may or may not fit.
            self.close(request.session_id);
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        let (start, partitions) = session.in_turn();
        drop(session);
        if partitions.is_empty() {
            // The answer names no session, so that the client learns that this one is closed.
            self.close(request.session_id);
            return Ok(Plan { session: None, incremental: false, partitions, start });
        }
        Ok(Plan { session: Some(shared), incremental: true, partitions, start })
    }

    /// Closes a session. Returns true if there was one.
    pub(crate) fn close(&mut self, id: i32) -> bool {
        let closed = self.slots.remove(&id);
        self.partitions -= closed.as_ref().map_or(0, |slot| slot.size);
        closed.is_some()
    }

    /// Opens a session if there is space, or if another one may be evicted.
    fn open(
        &mut self,
        partitions: &[(Key, Wanted)],
        principal: &Arc<str>,
        by_id: bool,
        now_ms: u64,
    ) -> Option<Arc<Mutex<Session>>> {
        if self.slots.len() >= self.max && !self.evict(partitions.len(), now_ms) {
            return None;
        }
        if self.partitions + partitions.len() > PARTITIONS_MAX {
            return None;
        }
        let id = self.unused_id();
        let partitions = partitions.iter().cloned().collect();
        let session = Arc::new(Mutex::new(Session {
            id,
            principal: Arc::clone(principal),
            epoch: 1,
            by_id,
            partitions,
            start: 0,
        }));
        let size = session.lock().partitions.len();
        self.partitions += size;
        self.slots.insert(id, Slot { session: session.clone(), used_ms: now_ms, opened_ms: now_ms, size });
        Some(session)
    }

    /// Evicts the session that is unused for the longest time, or one that is smaller than the new one and no longer young.
    fn evict(&mut self, size: usize, now_ms: u64) -> bool {
        let unused = self.slots.iter().min_by_key(|(_, slot)| slot.used_ms);
        let unused = unused.filter(|(_, slot)| now_ms.saturating_sub(slot.used_ms) > EVICTION_MS);
        let smaller = || {
            let old =
                self.slots.iter().filter(|(_, slot)| now_ms.saturating_sub(slot.opened_ms) > EVICTION_MS);
            old.min_by_key(|(_, slot)| slot.size).filter(|(_, slot)| slot.size < size)
        };
        let Some(id) = unused.or_else(smaller).map(|(id, _)| *id) else { return false };
        self.close(id)
    }

    fn unused_id(&self) -> i32 {
        loop {
            let id = ((self.random)() >> 1) as i32;
            if id != NO_SESSION && !self.slots.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Session {
    fn update(&mut self, request: &FetchRequest<'_>) {
        for forgotten in &request.forgotten_topics_data {
            let topic = topic_key(&forgotten.topic, forgotten.topic_id, self.by_id);
            for partition in &forgotten.partitions {
                self.partitions.swap_remove(&(topic.clone(), *partition));
            }
        }
        for (key, wanted) in wanted(&request.topics, self.by_id) {
            let sent = self.partitions.get(&key).map_or(NOTHING_SENT, |known| known.sent);
            self.partitions.insert(key, Wanted { sent, ..wanted });
        }
    }

    /// The partitions, beginning behind the last one with data in the last response. The rank of the first comes with them.
    fn in_turn(&self) -> (usize, Vec<(Key, Wanted)>) {
        let start = self.start.min(self.partitions.len());
        let (first, rest) = (self.partitions.iter().skip(start), self.partitions.iter().take(start));
        (start, first.chain(rest).map(|(key, wanted)| (key.clone(), wanted.clone())).collect())
    }

    /// Notes a partition's answer. Returns true if it has to be sent: it has records, an error, or ends that moved.
    /// The partition is searched if another one is at its place by now.
    fn note_answer(&mut self, key: &Key, place: usize, answer: Answer) -> bool {
        let is_there = self.partitions.get_index(place).is_some_and(|(there, _)| there == key);
        let index = if is_there { Some(place) } else { self.partitions.get_index_of(key) };
        let Some(index) = index else { return true };
        let wanted = &mut self.partitions[index];
        let now = Sent { high_watermark: answer.high_watermark, log_start_offset: answer.log_start_offset };
        let moved = wanted.sent != now;
        // After an error the client gets the ends again, whatever they are.
        wanted.sent = if answer.is_error { NOTHING_SENT } else { now };
        if answer.has_records {
            self.start = index + 1;
        }
        answer.has_records || answer.is_error || moved
    }
}

/// The answer for one partition.
pub(crate) struct Answer {
    /// True if it has records.
    pub(crate) has_records: bool,
    /// True if it has an error or a diverging epoch.
    pub(crate) is_error: bool,
    /// The high watermark.
    pub(crate) high_watermark: i64,
    /// The log start offset.
    pub(crate) log_start_offset: i64,
}

fn topic_key(name: &str, id: Uuid, by_id: bool) -> TopicKey {
    if by_id { TopicKey::Id(id) } else { TopicKey::Name(name.into()) }
}

fn wanted(topics: &[FetchTopic<'_>], by_id: bool) -> impl Iterator<Item = (Key, Wanted)> {
    topics.iter().flat_map(move |topic| {
        let key = topic_key(&topic.topic, topic.topic_id, by_id);
        topic.partitions.iter().map(move |partition| {
            let wanted = Wanted {
                offset: partition.fetch_offset,
                bytes_max: partition.partition_max_bytes,
                current_leader_epoch: LeaderEpoch::new(partition.current_leader_epoch),
                last_fetched_epoch: LeaderEpoch::new(partition.last_fetched_epoch),
                sent: NOTHING_SENT,
            };
            ((key.clone(), partition.partition), wanted)
        })
    })
}

#[cfg(test)]
mod tests {
    use mainstem_wire::messages::fetch_request::{FetchPartition, ForgottenTopic};

    use super::*;

    const TOPIC: Uuid = Uuid([7; 16]);

    fn request(session: (i32, i32), partitions: &[(i32, i64)], forgotten: &[i32]) -> FetchRequest<'static> {
        let partitions = partitions
            .iter()
            .map(|&(partition, fetch_offset)| FetchPartition {
                partition,
                fetch_offset,
                ..Default::default()
            })
            .collect::<Vec<_>>();
        let topics = match partitions.is_empty() {
            true => Vec::new(),
            false => vec![FetchTopic { topic_id: TOPIC, partitions, ..Default::default() }],
        };
        let forgotten_topics_data = match forgotten.is_empty() {
            true => Vec::new(),
            false => {
                vec![ForgottenTopic { topic_id: TOPIC, partitions: forgotten.to_vec(), ..Default::default() }]
            }
        };
        FetchRequest {
            session_id: session.0,
            session_epoch: session.1,
            topics,
            forgotten_topics_data,
            ..Default::default()
        }
    }

    fn alice() -> Arc<str> {
        "User:alice".into()
    }

    /// Different numbers, the first of which is no valid id.
    fn random() -> u32 {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9)
    }

    #[test]
    fn the_session_of_another_principal_is_none() {
        let mut sessions = FetchSessions::new(10, random);
        let id =
            sessions.plan(&request((0, 0), &[(0, 10)], &[]), &alice(), true, 0).expect("opens").session_id();
        let mallory: Arc<str> = "User:mallory".into();
        let stolen = sessions.plan(&request((id, 1), &[], &[]), &mallory, true, 0).err();
        assert_eq!(stolen, Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        sessions.plan(&request((id, -1), &[], &[]), &mallory, true, 0).expect("closes nothing");
        let next = sessions.plan(&request((id, 1), &[], &[]), &alice(), true, 0).expect("it is still there");
        assert_eq!(offsets(&next), [(0, 10)]);
    }

    fn offsets(plan: &Plan) -> Vec<(i32, i64)> {
        plan.partitions.iter().map(|((_, partition), wanted)| (*partition, wanted.offset)).collect()
    }

    fn answer(high_watermark: i64, has_records: bool) -> Answer {
        Answer { has_records, is_error: false, high_watermark, log_start_offset: 0 }
    }

    #[test]
    fn a_partition_that_is_named_twice_is_read_once() {
        for session_epoch in [INITIAL_EPOCH, FINAL_EPOCH] {
            let request = request((NO_SESSION, session_epoch), &[(3, 10), (4, 20), (3, 30)], &[]);
            let plan =
                FetchSessions::new(10, random).plan(&request, &alice(), true, 0).expect("it is no session's");
            let read: Vec<_> =
                plan.partitions.iter().map(|((_, index), wanted)| (*index, wanted.offset)).collect();
            assert_eq!(read, [(3, 30), (4, 20)]);
        }
    }

    #[test]
    fn a_session_remembers_updates_and_forgets() {
        let mut sessions = FetchSessions::new(10, random);
        let full =
            sessions.plan(&request((0, 0), &[(0, 10), (1, 20)], &[]), &alice(), true, 0).expect("opens");
        let id = full.session_id();
        assert!(id > 0 && !full.incremental);
        let next = sessions.plan(&request((id, 1), &[(1, 25)], &[]), &alice(), true, 1).expect("resumes");
        assert_eq!(offsets(&next), [(0, 10), (1, 25)]);
        let next = sessions.plan(&request((id, 2), &[], &[0]), &alice(), true, 2).expect("resumes");
        assert_eq!(offsets(&next), [(1, 25)]);
        let empty = sessions.plan(&request((id, 3), &[], &[1]), &alice(), true, 3).expect("resumes");
        assert!(empty.partitions.is_empty());
        assert_eq!(empty.session_id(), NO_SESSION);
        assert_eq!(sessions.len(), 0, "a session without partitions is closed");
    }

    #[test]
    fn epochs_ids_and_kinds_are_checked() {
        let mut sessions = FetchSessions::new(10, random);
        let id =
            sessions.plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, 0).expect("opens").session_id();
        let refused = |sessions: &mut FetchSessions, session, by_id| {
            sessions.plan(&request(session, &[], &[]), &alice(), by_id, 0).err()
        };
        assert_eq!(refused(&mut sessions, (id, 2), true), Some(ErrorCode::INVALID_FETCH_SESSION_EPOCH));
        assert_eq!(refused(&mut sessions, (id ^ 1, 1), true), Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert_eq!(refused(&mut sessions, (id, 1), false), Some(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR));
        sessions.plan(&request((id, -1), &[], &[]), &alice(), true, 0).expect("closes");
        assert_eq!(refused(&mut sessions, (id, 1), true), Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
    }

    #[test]
    fn an_incremental_answer_tells_only_what_changed() {
        let mut sessions = FetchSessions::new(10, random);
        let plan = sessions.plan(&request((0, 0), &[(0, 0), (1, 0)], &[]), &alice(), true, 0).expect("opens");
        assert!(plan.note_answer(0, answer(5, false)) && plan.note_answer(0, answer(5, false)), "it is full");
        let id = plan.session_id();
        let plan = sessions.plan(&request((id, 1), &[(1, 0)], &[]), &alice(), true, 0).expect("resumes");
        assert!(!plan.note_answer(0, answer(5, false)));
        assert!(plan.note_answer(1, answer(5, false)), "the first answer tells the ends");
        assert!(plan.note_answer(0, answer(5, true)));
        assert!(plan.note_answer(0, answer(6, false)));
        let failed = Answer { is_error: true, ..answer(6, false) };
        assert!(plan.note_answer(0, failed));
        assert!(plan.note_answer(0, answer(6, false)), "after an error the ends are sent again");
    }

    #[test]
    fn an_answer_is_noted_of_its_partition_wherever_that_is_by_now() {
        let mut sessions = FetchSessions::new(10, random);
        let named = [(0, 0), (1, 0), (2, 0)];
        let opened = sessions.plan(&request((0, 0), &named, &[]), &alice(), true, 0).expect("opens");
        let id = opened.session_id();
        opened.note_answer(1, answer(5, true));
        let plan = sessions.plan(&request((id, 1), &[], &[]), &alice(), true, 0).expect("resumes");
        assert_eq!(offsets(&plan), [(2, 0), (0, 0), (1, 0)]);
        let tells = |plan: &Plan, of: i32, high_watermark| {
            let rank = plan.partitions.iter().position(|((_, partition), _)| *partition == of);
            plan.note_answer(rank.expect("it is in the plan"), answer(high_watermark, false))
        };
        for partition in 0..3 {
            tells(&plan, partition, 10 + i64::from(partition));
            assert!(!tells(&plan, partition, 10 + i64::from(partition)), "{partition} was noted as another");
        }
        // The last one takes the place of the first one.
        let next = sessions.plan(&request((id, 2), &[], &[0]), &alice(), true, 0).expect("resumes");
        assert!(!tells(&plan, 2, 12) && !tells(&plan, 1, 11), "by a plan from before");
        assert!(tells(&plan, 0, 10), "the session has it no more");
        assert!(!tells(&next, 2, 12) && !tells(&next, 1, 11));
    }

    #[test]
    fn what_all_sessions_remember_is_bounded() {
        let mut sessions = FetchSessions::new(10, random);
        let many: Vec<_> = (0..PARTITIONS_MAX as i32).map(|partition| (partition, 0)).collect();
        let large =
            sessions.plan(&request((0, 0), &many, &[]), &alice(), true, 0).expect("opens").session_id();
        let small = sessions.plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, 0).expect("answers");
        assert_eq!(small.session_id(), NO_SESSION, "there is no room");
        let grown = sessions.plan(&request((large, 1), &[(-1, 0)], &[]), &alice(), true, 0);
        assert_eq!(grown.err(), Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
        assert_eq!((sessions.len(), sessions.partitions), (0, 0));
        let small = sessions.plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, 0).expect("opens");
        assert!(small.session_id() > 0);
    }

    #[test]
    fn a_session_that_its_client_closes_frees_space() {
        for session_epoch in [INITIAL_EPOCH, FINAL_EPOCH] {
            let mut sessions = FetchSessions::new(10, random);
            let opened =
                sessions.plan(&request((0, 0), &[(0, 0), (1, 0)], &[]), &alice(), true, 0).expect("opens");
            let again = request((opened.session_id(), session_epoch), &[(7, 0)], &[]);
            sessions.plan(&again, &alice(), true, 0).expect("answers");
            let open = usize::from(session_epoch == INITIAL_EPOCH);
            assert_eq!((sessions.len(), sessions.partitions), (open, open));
        }
    }

    #[test]
    fn partitions_take_turns() {
        let mut sessions = FetchSessions::new(10, random);
        let plan = sessions
            .plan(&request((0, 0), &[(0, 0), (1, 0), (2, 0)], &[]), &alice(), true, 0)
            .expect("opens");
        plan.note_answer(0, answer(5, true));
        let next =
            sessions.plan(&request((plan.session_id(), 1), &[], &[]), &alice(), true, 0).expect("resumes");
        assert_eq!(offsets(&next), [(1, 0), (2, 0), (0, 0)]);
    }

    #[test]
    fn a_full_cache_evicts_only_what_is_old() {
        let mut sessions = FetchSessions::new(1, random);
        let first =
            sessions.plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, 0).expect("opens").session_id();
        let second =
            sessions.plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, EVICTION_MS).expect("answers");
        assert_eq!(second.session_id(), NO_SESSION, "the first one is in use");
        let third = sessions
            .plan(&request((0, 0), &[(0, 0)], &[]), &alice(), true, EVICTION_MS + 1)
            .expect("answers");
        assert_ne!(third.session_id(), first);
        assert_eq!(sessions.len(), 1);
    }
}
