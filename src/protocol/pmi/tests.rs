use super::*;

/// Returns the answers of a launcher as they were recorded. `{}` stands for the value.
fn recorded(launcher: &str, puts: bool) -> Vec<&'static str> {
    let (init, name, put, barrier, get, end) = match launcher {
        "hydra" => (
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "cmd=my_kvsname kvsname=kvs_8862_0_1733471651_n01",
            "cmd=put_result rc=0 msg=success",
            "cmd=barrier_out",
            "cmd=get_result rc=0 msg=success value={}",
            "cmd=finalize_ack",
        ),
        "mpich 5" => (
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2",
            "cmd=my_kvsname rc=0 kvsname=kvs_8155_0_1453000835_vm",
            "cmd=put_result rc=0",
            "cmd=barrier_out tag=0",
            "cmd=get_result rc=0 value={}",
            "cmd=finalize_ack rc=0",
        ),
        _ => (
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "cmd=my_kvsname rc=0 kvsname=2.0",
            "cmd=put_result rc=0",
            "cmd=barrier_out rc=0",
            "cmd=get_result rc=0 value={}",
            "cmd=finalize_ack rc=0",
        ),
    };
    let put = puts.then_some(put);
    [init, name]
        .into_iter()
        .chain(put)
        .chain([barrier, get, end])
        .collect()
}

fn answer(exchange: &mut Exchange, lines: &[&str]) -> Result<Next, String> {
    let value = "ab".repeat(74);
    let mut next = Err("nothing was answered".to_owned());
    for line in lines {
        next = exchange.receive(&line.replace("{}", &value));
        if next.is_err() {
            break;
        }
    }
    next
}

#[test]
fn every_launcher_carries_the_value_of_rank_0() {
    let value = "ab".repeat(74);
    for launcher in ["hydra", "mpich 5", "slurm"] {
        for own in [Some(value.clone()), None] {
            let lines = recorded(launcher, own.is_some());
            let (mut exchange, first) = Exchange::new(own.clone(), false);
            assert_eq!(first, "cmd=init pmi_version=1 pmi_subversion=1\n");
            assert_eq!(answer(&mut exchange, &lines), Ok(Next::Done(value.clone())));
            // An MPI library of this process has initialized PMI and finalizes it later.
            let (mut exchange, first) = Exchange::new(own, true);
            assert_eq!(first, "cmd=get_my_kvsname\n");
            let lines = &lines[1..lines.len() - 1];
            assert_eq!(answer(&mut exchange, lines), Ok(Next::Done(value.clone())));
        }
    }
}

#[test]
fn refusals_and_garbage_are_errors_that_do_not_quote_the_value() {
    let lines = recorded("hydra", false);
    for (at, line) in [
        (0, "cmd=response_to_init rc=-1 value=deadbeef"),
        (1, "cmd=put_result rc=0 value=deadbeef"),
        (2, "deadbeef"),
        (2, ""),
        (3, "cmd=get_result rc=-1 msg=deadbeef value=unknown"),
        (3, "cmd=get_result rc=1"),
        (4, "rc=0 kvsname=deadbeef"),
    ] {
        let (mut exchange, _) = Exchange::new(None, false);
        let mut lines = lines.clone();
        lines[at] = line;
        let error = answer(&mut exchange, &lines).unwrap_err();
        assert!(!error.contains("deadbeef"), "{error}");
    }
    let (mut exchange, _) = Exchange::new(Some("v".repeat(200)), true);
    let long = format!("cmd=my_kvsname kvsname={}", "k".repeat(400));
    assert!(exchange.receive(&long).is_err());
}
