//! `mainstem profile`, and commands that connect to a profile.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::broker::Broker;
use crate::support::{Run, mainstem};

/// Runs the binary with a user's directory of configurations, and no other setting that says where to connect.
fn run_in(home: &std::path::Path, variables: &[(&str, &str)], arguments: &str) -> Run {
    let mut command = mainstem("", arguments);
    command
        .env_remove("MAINSTEM_BOOTSTRAP")
        .env_remove("MAINSTEM_COMMAND_CONFIG")
        .env_remove("MAINSTEM_PROFILE");
    command.env("XDG_CONFIG_HOME", home).envs(variables.iter().copied());
    command.output().expect("the binary runs").into()
}

#[test]
fn a_profile_says_where_to_connect() {
    let (broker, other) = (Broker::start(), Broker::start());
    broker.run("topic create here").ok();
    other.run("topic create there").ok();
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &str| run_in(home.path(), &[], arguments);
    assert!(run("profile list").ok().starts_with("there are no profiles; "));
    run(&format!("profile add one --bootstrap {}", broker.address)).ok();
    run(&format!("profile add two --bootstrap {}", other.address)).ok();
    let file = home.path().join("mainstem/profiles");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let topics = |variables: &[(&str, &str)], arguments: &str| {
        let listed = run_in(home.path(), variables, &format!("topic list --json {arguments}")).json();
        listed[0]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(topics(&[], "--profile one"), "here");
    assert_eq!(topics(&[("MAINSTEM_PROFILE", "two")], ""), "there");
    run("profile use one").ok();
    assert_eq!(topics(&[], ""), "here");
    assert_eq!(topics(&[], "--profile two"), "there");
    assert_eq!(topics(&[], &format!("--profile one --bootstrap {}", other.address)), "there");
    assert_eq!(topics(&[("MAINSTEM_BOOTSTRAP", &other.address)], ""), "there");
    let listed = run("profile list --json").json();
    let one = |name: &str, broker: &Broker, used: bool| json!({"profile": name, "bootstrap": broker.address, "command_config": null, "used": used});
    assert_eq!(listed, json!([one("one", &broker, true), one("two", &other, false)]));
    run("profile remove one").ok();
    assert_eq!(run("profile list --json").json(), json!([one("two", &other, false)]));
}

#[test]
fn what_a_profile_cannot_be_is_said() {
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &str| run_in(home.path(), &[], arguments);
    run("profile add one --bootstrap a:1").ok();
    for (wrong, said) in [
        ("profile add one --bootstrap b:1", "there is a profile one already; --replace changes it"),
        ("profile add a/b --bootstrap b:1", "the name of a profile has letters"),
        ("profile add two --bootstrap b", "--bootstrap takes HOST:PORT"),
        (
            "profile add two --bootstrap b:1 --command-config missing",
            "--command-config missing cannot be found",
        ),
        ("profile use two", "there is no profile two; `mainstem profile list` shows those that are"),
        ("profile remove two", "there is no profile two"),
        ("topic list --profile two", "there is no profile two"),
    ] {
        let message = run(wrong).failed();
        assert!(message.contains(said), "{wrong}: {message}");
    }
    run("profile add one --bootstrap b:1 --replace").ok();
    assert_eq!(run("profile list --json").json()[0]["bootstrap"], json!("b:1"));
    std::fs::write(home.path().join("mainstem/profiles"), "{").unwrap();
    let message = run("profile list").failed();
    assert!(message.contains("are not as `mainstem profile` writes them; repair or remove it"), "{message}");
}
