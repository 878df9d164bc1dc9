//! The order of writes and syncs at start and stop, which the marker's truth hangs on, and how many there are.

use super::traced::Traced;
use super::*;

/// Steps of a start, after an earlier life.
fn start_steps(before: &[Life]) -> Vec<String> {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("data");
    before.iter().for_each(|life| live(&path, *life));
    let traced = Traced::new(Arc::new(RealStorage), &path, usize::MAX);
    let dir = LogDir::open(traced.storage(), &path, &identity(), BOOT).unwrap();
    let steps = traced.steps();
    drop(dir);
    steps.into_iter().map(|step| step.replace(&temporary.path().display().to_string(), "PARENT")).collect()
}

#[test]
fn a_first_start_costs_three_syncs() {
    let expected = [
        "create directory .",
        "SYNC directory PARENT",
        "lock .lock",
        "create meta.properties.tmp",
        "cut meta.properties.tmp",
        "write meta.properties.tmp",
        "SYNC meta.properties.tmp",
        "rename to meta.properties",
        "remove .kafka_cleanshutdown",
        "SYNC directory .",
        "create mainstem.boot.tmp",
        "cut mainstem.boot.tmp",
        "write mainstem.boot.tmp",
        "rename to mainstem.boot",
    ];
    assert_eq!(start_steps(&[]), expected);
}

#[test]
fn the_marker_is_gone_for_good_before_anything_is_written() {
    let expected = [
        "lock .lock",
        "remove .kafka_cleanshutdown",
        "SYNC directory .",
        "create mainstem.boot.tmp",
        "cut mainstem.boot.tmp",
        "write mainstem.boot.tmp",
        "rename to mainstem.boot",
    ];
    assert_eq!(start_steps(&[Life::Stopped(OTHER_BOOT)]), expected);
}

#[test]
fn a_start_after_a_kill_makes_durable_what_names_it_found() {
    let expected = ["lock .lock", "remove .kafka_cleanshutdown", "SYNC directory ."];
    assert_eq!(start_steps(&[Life::Killed(BOOT)]), expected);
}

#[test]
fn the_marker_comes_after_everything_else() {
    let temporary = tempfile::tempdir().unwrap();
    let traced = Traced::new(Arc::new(RealStorage), temporary.path(), usize::MAX);
    let dir = LogDir::open(traced.storage(), temporary.path(), &identity(), BOOT).unwrap();
    dir.checkpoints().recovery_point.set(&t(0), 5);
    let started = traced.steps().len();
    dir.stop_clean().unwrap();
    let expected = [
        "create recovery-point-offset-checkpoint.tmp",
        "cut recovery-point-offset-checkpoint.tmp",
        "write recovery-point-offset-checkpoint.tmp",
        "SYNC recovery-point-offset-checkpoint.tmp",
        "rename to recovery-point-offset-checkpoint",
        "SYNC directory .",
        "create .mainstem-segments.tmp",
        "cut .mainstem-segments.tmp",
        "write .mainstem-segments.tmp",
        "SYNC .mainstem-segments.tmp",
        "rename to .mainstem-segments",
        "SYNC directory .",
        "create .kafka_cleanshutdown.tmp",
        "cut .kafka_cleanshutdown.tmp",
        "write .kafka_cleanshutdown.tmp",
        "SYNC .kafka_cleanshutdown.tmp",
        "rename to .kafka_cleanshutdown",
        "SYNC directory .",
    ];
    assert_eq!(traced.steps()[started..], expected);
}

#[test]
fn many_new_partitions_cost_a_handful_of_syncs() {
    struct New(crate::flusher::FlushTicket, Mutex<FlushWork>, mpsc::Sender<()>);
    impl crate::flusher::FlushTarget for New {
        fn ticket(&self) -> &crate::flusher::FlushTicket {
            &self.0
        }
        fn begin_flush(&self) -> FlushWork {
            std::mem::take(&mut self.1.lock())
        }
        fn end_flush(&self, _: i64, result: io::Result<()>) {
            result.unwrap();
            self.2.send(()).unwrap();
        }
    }
    let temporary = tempfile::tempdir().unwrap();
    let traced = Traced::new(Arc::new(RealStorage), temporary.path(), usize::MAX);
    let flush = FlushOptions { dirty: Arc::new(|| Some(0)), ..FlushOptions::default() };
    let options = LogDirOptions { flush, ..LogDirOptions::default() };
    let dir = options.open(traced.storage(), temporary.path(), &identity(), BOOT).unwrap();
    let (sender, receiver) = mpsc::channel();
    let targets: Vec<Arc<dyn crate::flusher::FlushTarget>> = (0..300)
        .map(|partition| {
            let (_, work) = dir.create_partition(&t(partition), &[7; 16]).unwrap();
            Arc::new(New(Default::default(), Mutex::new(work), sender.clone())) as Arc<_>
        })
        .collect();
    let created = traced.steps().len();
    targets.iter().for_each(|target| assert!(dir.flusher().request(target)));
    targets.iter().for_each(|_| receiver.recv().unwrap());
    // The first rounds may find only a few of them waiting.
    let syncs = traced.steps().len() - created;
    assert!(syncs < 60, "{syncs} syncs for {:?}", dir.flusher().stats());
}
