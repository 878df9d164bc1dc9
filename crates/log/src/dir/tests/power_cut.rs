//! A directory through several lives, ended at every single step by a kill or a power cut: the marker, the
//! checkpoints and the identity that are found afterwards are true.

use super::medium::{Dice, Medium};
use super::traced::Traced;
use super::*;
use crate::storage::{OpenMode, read_small_file, write_all_at};

const DATA: &str = "/mnt/data";
const LIVES: u64 = 3;
const SEEDS: u64 = 12;

/// The knowledge of the process and its clients, which a power cut does not change.
#[derive(Debug, Default)]
struct Known {
    /// Bytes that were written to the partition's file.
    written: Vec<u8>,
    /// The number of written bytes that are synced.
    synced: usize,
    /// The log start offset that was acknowledged.
    log_start_acknowledged: i64,
    /// The ids that the last successful start returned.
    ids: Option<(String, [u8; 16])>,
}

/// One life: appends without a sync, a DeleteRecords that is made durable, an append that is synced, an orderly stop.
fn live(storage: Arc<dyn Storage>, boot: &str, life: u64, known: &mut Known) -> io::Result<()> {
    let dir = LogDir::open(storage.clone(), Path::new(DATA), &identity(), boot).map_err(io::Error::other)?;
    known.ids = Some((dir.cluster_id().to_owned(), dir.directory_id()));
    if dir.partitions()?.is_empty() {
        let (_, work) = dir.create_partition(&t(0), &[7; 16])?;
        work.files.iter().try_for_each(|file| file.sync_data())?;
        work.directories.iter().try_for_each(|directory| storage.sync_dir(directory))?;
    }
    let path = dir.partition_path(&t(0));
    let file = storage.open(&path.join("data"), OpenMode::Create)?;
    dir.recovered()?;

    append(&*file, b"not waited for", known)?;
    dir.checkpoints().log_start.set(&t(0), life as i64);
    dir.checkpoints().log_start.commit()?;
    known.log_start_acknowledged = life as i64;

    append(&*file, b"waited for", known)?;
    file.sync_data()?;
    storage.sync_dir(&path)?;
    known.synced = known.written.len();
    dir.checkpoints().recovery_point.set(&t(0), known.synced as i64);
    dir.stop_clean().map(|clean| assert!(clean))
}

fn append(file: &dyn crate::storage::StorageFile, bytes: &[u8], known: &mut Known) -> io::Result<()> {
    let position = known.written.len() as u64;
    write_all_at(file, bytes, position)?;
    known.written.extend(bytes);
    Ok(())
}

/// Checks that the next start finds what the clients know.
fn verify(medium: &Medium, boot: &str, known: &Known, context: &str) -> LastStop {
    let storage = Arc::new(medium.clone());
    let dir = LogDir::open(storage, Path::new(DATA), &identity(), boot).unwrap();
    let ids = (dir.cluster_id().to_owned(), dir.directory_id());
    assert!(known.ids.as_ref().is_none_or(|known| *known == ids), "{context}: another identity");
    let path = dir.partition_path(&t(0)).join("data");
    let data = read_small_file(medium, &path, 1 << 20).unwrap_or_default();
    match dir.last_stop() {
        LastStop::New => assert!(known.written.is_empty(), "{context}: not new"),
        LastStop::Clean => assert_eq!(data, known.written, "{context}: the marker lies"),
        LastStop::UncleanSameBoot => assert_eq!(data, known.written, "{context}: the boot record lies"),
        LastStop::UncleanOtherBoot => {}
    }
    let recovery_point = dir.checkpoints().recovery_point.get(&t(0)).unwrap_or(0);
    assert!(recovery_point <= known.synced as i64, "{context}: the recovery point leads");
    let synced = &known.written[..recovery_point as usize];
    assert!(data.starts_with(synced), "{context}: lost what was below the recovery point");
    let log_start = dir.checkpoints().log_start.get(&t(0)).unwrap_or(0);
    assert!(log_start >= known.log_start_acknowledged, "{context}: DeleteRecords was undone");
    dir.last_stop()
}

/// Runs lives on a new medium until the step is reached, each under the boot id that `boots` returns.
fn lives(steps_max: usize, boots: fn(u64) -> String) -> (Medium, Known, Option<u64>, usize) {
    let medium = Medium::new();
    medium.create_dir(Path::new("/mnt")).unwrap();
    medium.sync_dir(Path::new("/")).unwrap();
    let traced = Traced::new(Arc::new(medium.clone()), Path::new(DATA), steps_max);
    let mut known = Known::default();
    for life in 1..=LIVES {
        let result = live(traced.storage(), &boots(life), life, &mut known);
        if result.is_err() {
            return (medium, known, Some(life), traced.steps().len());
        }
        medium.kill();
    }
    (medium, known, None, traced.steps().len())
}

fn one_boot(_: u64) -> String {
    "boot".to_owned()
}

fn own_boot(life: u64) -> String {
    format!("boot-{life}")
}

#[test]
fn a_kill_at_any_step_leaves_the_truth() {
    let (_, _, _, steps) = lives(usize::MAX, one_boot);
    assert!(steps > 50, "{steps} steps");
    for step in 0..=steps {
        let (medium, known, _, _) = lives(step, one_boot);
        medium.kill();
        verify(&medium, "boot", &known, &format!("killed at step {step}"));
    }
}

#[test]
fn a_power_cut_at_any_step_leaves_the_truth() {
    let (_, _, _, steps) = lives(usize::MAX, own_boot);
    let (mut clean, mut unclean) = (0, 0);
    for step in 0..=steps {
        for seed in 0..SEEDS {
            let (medium, known, _, _) = lives(step, own_boot);
            medium.power_cut(&mut Dice(seed << 32 | step as u64));
            let context = format!("power cut at step {step}, seed {seed}");
            let marked = medium.exists(&Path::new(DATA).join(CLEAN_SHUTDOWN)).unwrap();
            *(if marked { &mut clean } else { &mut unclean }) += 1;
            let found = verify(&medium, "after", &known, &context);
            // That start is killed before the logs are recovered.
            medium.kill();
            let trusted = matches!(found, LastStop::New | LastStop::Clean);
            let again = if trusted { LastStop::UncleanSameBoot } else { LastStop::UncleanOtherBoot };
            assert_eq!(verify(&medium, "after", &known, &context), again, "{context}");
            // A second power cut.
            medium.power_cut(&mut Dice(!seed));
            assert_eq!(
                verify(&medium, "after that", &known, &context),
                LastStop::UncleanOtherBoot,
                "{context}"
            );
        }
    }
    assert!(clean > SEEDS && unclean > SEEDS, "{clean} with a marker, {unclean} without: both are tested");
}
