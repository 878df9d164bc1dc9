//! placeholder
pub(crate) fn run(_: &[String]) -> anyhow::Result<()> { Ok(()) }
