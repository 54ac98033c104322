//! Reads the variables that `srun` sets for each task of a step.

use super::{Found, Lookup, Meeting, Placement, number, required};
use crate::error::Result;
use crate::hash::fnv_1a;

const PROCID: &str = "SLURM_PROCID";
/// Steps from this number on are not steps of `srun`: Slurm numbers the body of a batch script, an
/// interactive shell and other special steps down from `u32::MAX`.
const SPECIAL_STEP_FIRST: u32 = 4_294_967_280;
/// The ports among which the step's port is chosen, below those that Linux assigns itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

pub(super) fn read(set: Lookup<'_>) -> Result<Found> {
    if set(PROCID).is_none() {
        return Ok(Found::Absent(format!("{PROCID} is not set")));
    }
    let step: Option<u32> = number(set, "SLURM_STEP_ID")?;
    let Some(step) = step.filter(|step| *step < SPECIAL_STEP_FIRST) else {
        return Ok(Found::Absent(
            "this process does not belong to a step that srun started".to_owned(),
        ));
    };
    // Only variables of the step count: the others describe the job, or the arguments of `srun`.
    let node: usize = number(set, "SLURM_NODEID")?.unwrap_or(0);
    // In a heterogeneous step, nodes are numbered differently than they are listed.
    let components: Option<usize> = number(set, "SLURM_HET_SIZE")?;
    let is_heterogeneous = components.is_some_and(|components| components > 1);
    let tasks = set("SLURM_STEP_TASKS_PER_NODE").filter(|_| !is_heterogeneous);
    let local_world_size = tasks.map(|text| {
        tasks_on_node(&text, node).ok_or_else(|| {
            super::malformed("SLURM_STEP_TASKS_PER_NODE", &text, "a list such as 2(x3),1")
        })
    });
    let placement = Placement {
        launcher: super::SLURM,
        rank: required(set, PROCID, "a rank")?,
        world_size: required(set, "SLURM_STEP_NUM_TASKS", "the number of tasks")?,
        local_rank: number(set, "SLURM_LOCALID")?,
        local_world_size: local_world_size.transpose()?,
        meeting: Meeting::Unknown("SLURM_STEP_NODELIST is not set"),
    };
    let meeting = match is_heterogeneous {
        true => Meeting::Unknown("the step is heterogeneous; use `srun --mpi=pmi2`"),
        false => meeting(set, step, &placement)?,
    };
    Ok(Found::Rank(Placement {
        meeting,
        ..placement
    }))
}

/// Returns the address at which rank 0 listens: the first node of the step, and a port that differs
/// between the steps of a node.
fn meeting(set: Lookup<'_>, step: u32, placement: &Placement) -> Result<Meeting> {
    if set("SLURM_DISTRIBUTION").is_some_and(|kind| kind.starts_with("arbitrary")) {
        return Ok(Meeting::Unknown(
            "with `srun -m arbitrary`, rank 0 can be on any node; use `srun --mpi=pmi2`",
        ));
    }
    let Some(nodes) = set("SLURM_STEP_NODELIST") else {
        return Ok(placement.meeting.clone());
    };
    let host = match placement.is_on_one_host() {
        true => "127.0.0.1".to_owned(),
        false => first_node(&nodes).ok_or_else(|| {
            super::malformed("SLURM_STEP_NODELIST", &nodes, "a list such as n[01-03,07]")
        })?,
    };
    let reserved = set("SLURM_STEP_RESV_PORTS").and_then(|ports| first_number(&ports));
    let step = format!("{}.{step}", set("SLURM_JOB_ID").unwrap_or_default());
    let port = reserved.unwrap_or_else(|| {
        let hash = fnv_1a(step.bytes());
        PORTS.start + (hash % PORTS.len() as u64) as u16
    });
    let address = format!("{host}:{port}");
    Ok(Meeting::Address { address, step })
}

/// Returns the number at the beginning of a list of ports such as `21072-21073`.
fn first_number(ports: &str) -> Option<u16> {
    ports.split(['-', ',']).next()?.trim().parse().ok()
}

/// Returns the number of tasks on the node with this number. In `list`, such as `2(x3),1`, a count
/// may be followed by the number of successive nodes to which it applies.
fn tasks_on_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for item in list.split(',') {
        let (tasks, nodes) = match item.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (item.trim(), 1),
        };
        let tasks = tasks.parse().ok()?;
        if node - first < nodes {
            return Some(tasks);
        }
        first = first.checked_add(nodes)?;
    }
    None
}

/// Returns the first node in a list such as `n[01-03,07],m1`. Each bracket contains numbers and
/// ranges of numbers, whose leading zeros belong to the name.
fn first_node(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            return (!name.is_empty()).then_some(name);
        }
        let (numbers, after) = rest[end + 1..].split_once(']')?;
        name.push_str(numbers.split([',', '-']).next()?);
        rest = after;
    }
}

/// Returns `true` if this process runs in a job of Slurm, but not in a step of `srun`. This is the
/// case in the body of a batch script and in the shell of `salloc`.
pub(super) fn is_outside_step(set: Lookup<'_>) -> bool {
    set("SLURM_JOB_ID").is_some() && matches!(read(set), Ok(Found::Absent(_)))
}
