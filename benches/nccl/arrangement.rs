//! Defines the comparisons and the settings that they require. Has no side effects.

use ringtree::plan::Collective;
use ringtree::plan::internal::spec::is_blocked;
use std::fmt;

/// Number of ranks in every comparison.
pub(crate) const RANKS: usize = 2;

/// The first version of NCCL in which ranks can share a GPU without pretending to be on different
/// hosts.
pub(crate) const SHARES_A_GPU: Version = Version {
    major: 2,
    minor: 30,
    patch: 0,
};

/// Maximum number of CTAs that NCCL uses per rank, on the largest GPU.
const CTAS_MAX: usize = 32;

/// The goal over sockets: ringtree takes at most this multiple of NCCL's time, for buffers of at
/// least [`GOAL_BYTES_MIN`] bytes.
const GOAL_RATIO_MAX: f64 = 1.0;
const GOAL_BYTES_MIN: usize = 1 << 20;

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: usize,
    minor: usize,
    patch: usize,
}

impl Version {
    /// Decodes the number that `ncclGetVersion` returns. Up to version 2.8, it was encoded in a
    /// different way.
    pub(crate) fn from_code(code: usize) -> Self {
        let minor_at = if code < 10_000 { 1_000 } else { 10_000 };
        Self {
            major: code / minor_at,
            minor: code % minor_at / 100,
            patch: code % 100,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The assignment of GPUs to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// Rank r uses GPU r.
    Each,
    /// All ranks use GPU 0, and MPS lets their kernels run at the same time. Without MPS, the ranks
    /// take turns, and a kernel that waits for another rank also waits for that rank's turn.
    Shared,
}

impl Gpus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Each => "a GPU each",
            Self::Shared => "one GPU under MPS",
        }
    }

    /// Returns a remark about what the ratios show and do not show.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::Each => "a GPU each; one host",
            Self::Shared => "ranks share one GPU; no NVLink measured",
        }
    }

    /// Returns the index of the GPU that `rank` uses.
    pub(crate) fn of_rank(self, rank: usize) -> usize {
        match self {
            Self::Each => rank,
            Self::Shared => 0,
        }
    }
}

/// The path that the data takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// TCP on the loopback interface, as if each rank had its own host.
    Sockets,
    /// GPU memory that the ranks map from each other.
    Ipc,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Ipc => "ipc",
        }
    }

    /// Returns the reason why this version of NCCL cannot use this path, or `None` if it can.
    pub(crate) fn refusal(self, gpus: Gpus, version: Version) -> Option<String> {
        let is_shared = (self, gpus) == (Self::Ipc, Gpus::Shared);
        (is_shared && version < SHARES_A_GPU).then(|| {
            format!("NCCL {version} does not let ranks share a GPU; use {SHARES_A_GPU} or later")
        })
    }

    /// Returns the settings that make NCCL use this path. A GPU that ranks share must run the
    /// kernels of all ranks at the same time, because otherwise no rank makes progress. The kernels
    /// of all ranks must therefore fit on half of the GPU's multiprocessors.
    pub(crate) fn of_nccl(
        self,
        gpus: Gpus,
        rank: usize,
        multiprocessors: usize,
    ) -> Vec<(String, String)> {
        let mut settings = vec![
            ("NCCL_SOCKET_IFNAME", "lo".to_owned()),
            ("NCCL_IB_DISABLE", "1".into()),
        ];
        if gpus == Gpus::Shared {
            let ctas = (multiprocessors / RANKS / 2).clamp(1, CTAS_MAX);
            settings.push(("NCCL_MAX_CTAS", ctas.to_string()));
        }
        match self {
            Self::Sockets => settings.extend([
                ("NCCL_HOSTID", format!("rank{rank}")),
                ("NCCL_NET", "Socket".into()),
                ("NCCL_NET_PLUGIN", "none".into()),
                ("NCCL_MNNVL_ENABLE", "0".into()),
                ("NCCL_P2P_DISABLE", "1".into()),
                ("NCCL_SHM_DISABLE", "1".into()),
            ]),
            Self::Ipc => settings.push(("NCCL_HOSTID", "one".into())),
        }
        if (self, gpus) == (Self::Ipc, Gpus::Shared) {
            settings.push(("NCCL_MULTI_RANK_GPU_ENABLE", "1".into()));
            settings.push(("NCCL_NVLS_ENABLE", "0".into()));
        }
        owned(settings)
    }

    /// Returns `true` if `ratio` meets the goal for `case`, or `None` if there is no goal.
    pub(crate) fn meets_goal(self, case: Case, ratio: f64) -> Option<bool> {
        let is_large = case.bytes >= GOAL_BYTES_MIN;
        (self == Self::Sockets && is_large).then_some(ratio <= GOAL_RATIO_MAX)
    }

    /// Returns the settings that make ringtree use this path.
    pub(crate) fn of_ringtree(self, rank: usize, rendezvous: &str) -> Vec<(String, String)> {
        let mut settings = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", RANKS.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", RANKS.to_string()),
            ("RINGTREE_RENDEZVOUS", rendezvous.into()),
        ];
        match self {
            Self::Sockets => settings.extend([
                ("RINGTREE_TRANSPORT", "tcp".into()),
                ("RINGTREE_HOST_ID", format!("rank{rank}")),
            ]),
            // If memory cannot be mapped, this fails and reports the reason.
            Self::Ipc => settings.extend([
                ("RINGTREE_DEVICE_PATH", "mapped".into()),
                ("RINGTREE_HOST_ID", "one".into()),
            ]),
        }
        owned(settings)
    }
}

fn owned(settings: Vec<(&str, String)>) -> Vec<(String, String)> {
    let settings = settings.into_iter();
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// A call to measure. Elements are f32, the operator is sum, and the root is rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    /// Size of the buffer that holds the data of all ranks, as counted by `ringtree bench`.
    pub(crate) bytes: usize,
}

/// Returns all cases, in ascending order of size for each collective.
pub(crate) fn cases() -> Vec<Case> {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let all_reduces = [8, 64, KIB, 8 * KIB, 64 * KIB, 512 * KIB]
        .into_iter()
        .chain([MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]);
    let others = [
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
    ];
    let all_reduces = all_reduces.map(|bytes| (Collective::AllReduce, bytes));
    let others = others
        .into_iter()
        .flat_map(|collective| [KIB, MIB, 64 * MIB].map(|bytes| (collective, bytes)));
    all_reduces
        .chain(others)
        .map(|(collective, bytes)| Case { collective, bytes })
        .collect()
}

impl Case {
    /// Returns the number of elements in the complete buffer.
    pub(crate) fn count(self) -> usize {
        let count = (self.bytes / size_of::<f32>()).max(1);
        if is_blocked(self.collective) {
            return (count / RANKS).max(1) * RANKS;
        }
        count
    }

    /// Returns the number of elements in one rank's block, if the collective uses blocks.
    pub(crate) fn block(self) -> usize {
        self.count() / RANKS
    }

    /// Returns the number of elements that a rank contributes.
    pub(crate) fn input(self) -> usize {
        match self.collective {
            Collective::AllGather => self.block(),
            _ => self.count(),
        }
    }

    /// Returns the number of elements that a rank receives.
    pub(crate) fn output(self) -> usize {
        match self.collective {
            Collective::ReduceScatter => self.block(),
            _ => self.count(),
        }
    }

    /// Returns `true` if the result replaces the input.
    pub(crate) fn is_in_place(self) -> bool {
        self.input() == self.output()
    }

    /// Returns the line that is sent to a rank to describe this case.
    pub(crate) fn to_line(self) -> String {
        format!("{} {}", self.collective, self.bytes)
    }

    /// Parses a line from [`Case::to_line`].
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (collective, bytes) = line.split_once(' ')?;
        Some(Self {
            collective: collective.parse().ok()?,
            bytes: bytes.parse().ok()?,
        })
    }
}
