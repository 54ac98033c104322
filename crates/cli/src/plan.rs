//! Implements `ringtree plan`, which shows what a collective will do before it runs.

use crate::format::Format;
use crate::names::{Selection, algorithms, one_of, parse_selection};
use crate::quantity::{count, parse_rate, parse_size, parse_time};
use crate::{EXIT_OK, EXIT_USAGE, FAILED};
use ringtree::internal::limits::{
    DRAWN_RANKS_MAX, PIECES_MAX, RADIX_MAX, RANKS_PER_HOST_MAX, VERIFY_RANKS_MAX, WORLD_SIZE_MAX,
};
use ringtree::plan::draw::{self, Caption};
use ringtree::plan::internal::cost::{Traffic, schedule};
use ringtree::plan::internal::export::{Report, exported};
use ringtree::plan::internal::player::{Played, html};
use ringtree::plan::internal::select::with_breakdown;
use ringtree::plan::internal::select::{
    Choice, TuningTable, choose, choose_in_rank_order, parts, predicted_s, scratch_bytes,
};
use ringtree::plan::internal::units::Bytes;
use ringtree::plan::{
    Algorithm, Collective, Plan, PlanError, PlanErrorKind, Request, Topology, verify,
};
use ringtree::plan::{plans, required};
use std::io::Write;
use table::{rows, table};
use world::{costs, links, topology};

mod table;
mod world;

/// The arguments of `ringtree plan`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Name of the collective
    #[arg(value_parser = one_of(Collective::ALL, Collective::name))]
    collective: Collective,
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "auto"
    )]
    #[arg(help = algorithms("Algorithm: a name, auto (the algorithm that a call would choose) or \
                             all; --draw html also accepts two names, such as ring,circulant"))]
    #[arg(value_parser = parse_selection)]
    algorithm: Vec<Selection>,
    /// Radix of the algorithm, from 2 to 64; equivalent to NAME/K
    #[arg(long, value_name = "K", value_parser = count(2, RADIX_MAX))]
    radix: Option<usize>,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, WORLD_SIZE_MAX))]
    ranks: Option<usize>,
    /// Root rank for broadcast, reduce, gather and scatter
    #[arg(long, value_name = "R", default_value = "0", value_parser = count(0, WORLD_SIZE_MAX - 1))]
    root: usize,
    /// Size of the complete buffer in bytes; the suffixes K, M and G are powers of 1024
    #[arg(long, default_value = "1M", value_parser = parse_size)]
    bytes: usize,
    /// Number of pieces per block [default: the number with the shortest predicted time]
    #[arg(long, value_name = "C", value_parser = count(1, PIECES_MAX))]
    chunks: Option<usize>,
    /// Number of ranks per host: one number that divides --ranks, or one number per host, such as
    /// 3,5,2, which makes --ranks optional [default: 1]
    #[arg(long, value_name = "G|G,G,..", value_delimiter = ',')]
    #[arg(value_parser = count(1, RANKS_PER_HOST_MAX))]
    ranks_per_host: Vec<usize>,
    /// Number of hosts at each site, such as 4,4; the hosts at a site share one uplink
    #[arg(long, value_name = "H,H,..", value_delimiter = ',')]
    #[arg(value_parser = count(1, WORLD_SIZE_MAX))]
    sites: Vec<usize>,
    /// Latency of a message (L) between hosts (or through shared memory, if all ranks are on one
    /// host), in ns, us, ms or s [default: from RINGTREE_TUNING or the built-in table]
    #[arg(long, alias = "alpha", value_name = "TIME", value_parser = parse_time)]
    latency: Option<f64>,
    /// Overhead (o): time a message occupies its sender, and then its receiver [default: as for
    /// --latency]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    overhead: Option<f64>,
    /// Bandwidth of a link (the inverse of G), in bit, Kbit, Mbit, Gbit or Tbit per second
    /// [default: as for --latency]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    bandwidth: Option<f64>,
    /// Latency of a message between sites [default: from RINGTREE_TUNING, or ten times --latency]
    #[arg(long, alias = "uplink-alpha", value_name = "TIME", value_parser = parse_time)]
    uplink_latency: Option<f64>,
    /// Bandwidth of a site's uplink in each direction, shared by all ranks at the site [default:
    /// from RINGTREE_TUNING, or a tenth of --bandwidth]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    uplink_bandwidth: Option<f64>,
    /// Use only algorithms that RINGTREE_REPRODUCIBLE=1 allows; implied by that setting
    #[arg(long)]
    reproducible: bool,
    /// Verify the plans by symbolic execution (up to 1,024 ranks)
    #[arg(long)]
    verify: bool,
    /// Draw the plan (up to 64 ranks)
    #[arg(long, value_name = "FORM")]
    draw: Option<Drawing>,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
}

/// The form of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Drawing {
    /// A grid of characters
    Text,
    /// A picture
    Svg,
    /// A page that plays one plan, or two plans on a shared clock
    Html,
}

/// Runs `ringtree plan` and returns its exit code.
pub(crate) fn execute(arguments: &Arguments) -> u8 {
    let (message, code) = match answer(arguments) {
        Ok((output, fault)) => {
            // A reader that has closed standard output (`| head`) is not an error.
            let _ = std::io::stdout().lock().write_all(output.as_bytes());
            let Some(fault) = fault else { return EXIT_OK };
            (fault, FAILED)
        }
        Err(message) => (message, EXIT_USAGE),
    };
    eprintln!("ringtree plan: {message}");
    code
}

/// The parsed arguments.
#[derive(Debug)]
struct PlanQuery {
    collective: Collective,
    selection: Selection,
    /// The algorithm whose plan is played alongside the plan of `selection`.
    second: Option<Algorithm>,
    topology: Topology,
    root: usize,
    bytes: usize,
    pieces: Option<usize>,
    table: TuningTable,
    is_reproducible: bool,
    verify: bool,
    draw: Option<Drawing>,
    format: Format,
}

impl PlanQuery {
    fn of(arguments: &Arguments) -> Result<Self, String> {
        let Arguments {
            collective,
            root,
            draw,
            format,
            ..
        } = *arguments;
        let (selection, second) = selected(&arguments.algorithm, draw)?;
        let topology = topology(arguments)?;
        if root >= topology.world_size {
            let ranks = topology.world_size;
            return Err(format!(
                "--root {root} is out of range: it must be less than the number of ranks ({ranks})"
            ));
        }
        if draw.is_some() && format != Format::Table {
            return Err("--draw and --format cannot be combined; omit one of them".to_owned());
        }
        let inquiry = Self {
            collective,
            selection: with_radix(selection, second, arguments.radix)?,
            second,
            root: if collective.is_rooted() { root } else { 0 },
            bytes: arguments.bytes,
            pieces: arguments.chunks,
            table: links(arguments, &topology)?,
            topology,
            is_reproducible: arguments.reproducible || is_set("RINGTREE_REPRODUCIBLE", "1"),
            verify: arguments.verify,
            draw,
            format,
        };
        inquiry.check_drawing()?;
        Ok(inquiry)
    }

    fn check_drawing(&self) -> Result<(), String> {
        if self.draw.is_some() && self.topology.world_size > DRAWN_RANKS_MAX {
            return Err(format!("--draw supports up to {DRAWN_RANKS_MAX} ranks"));
        }
        match (self.selection, self.draw) {
            (Selection::All, Some(Drawing::Svg)) => {
                Err("--draw svg draws only one algorithm; pass its name or auto".to_owned())
            }
            (Selection::All, Some(Drawing::Html)) => Err(PLAYS.to_owned()),
            _ => Ok(()),
        }
    }

    /// Returns the algorithms to report on and, if the selection is `auto`, the reason for the
    /// choice.
    fn algorithms(&self) -> Result<(Vec<Algorithm>, Option<String>), String> {
        match self.selection {
            Selection::All => Ok((Algorithm::ALL.to_vec(), None)),
            Selection::One(algorithm) => {
                let named: Vec<Algorithm> = [algorithm].into_iter().chain(self.second).collect();
                for algorithm in &named {
                    required(self.collective, *algorithm)?;
                }
                Ok((named, None))
            }
            Selection::Auto => {
                let choice = self.choose(None)?;
                let line = with_breakdown(choice, &self.topology, &self.table)?;
                Ok((vec![choice.algorithm], Some(line.to_string())))
            }
        }
    }

    /// Returns the algorithm and the parameters that a call would choose. If `named` is an
    /// algorithm, returns the parameters that a call would choose for it.
    fn choose(&self, named: Option<Algorithm>) -> Result<Choice, PlanError> {
        let choose = match self.is_reproducible {
            true => choose_in_rank_order,
            false => choose,
        };
        let (topology, bytes) = (&self.topology, self.bytes);
        choose(self.collective, topology, bytes, 1, &self.table, named)
    }

    /// Returns the request for `algorithm`.
    fn request(&self, algorithm: Algorithm) -> Result<Request, PlanError> {
        let choice = self.choose(Some(algorithm))?;
        let request = Request {
            root: self.root,
            pieces: self.pieces.unwrap_or(choice.pieces),
            ..Request::new(self.collective, algorithm, &self.topology)
        };
        scratch_bytes(&request, self.bytes).map(|_| request)
    }

    fn assess(&self, algorithm: Algorithm) -> Result<Assessment, String> {
        let names = (self.collective, algorithm);
        let size = (self.topology.world_size, self.root);
        let request = match self.request(algorithm) {
            Ok(request) => request,
            Err(why_not) if self.selection == Selection::All => {
                return Ok(Assessment {
                    is_unsupported: why_not.kind() == PlanErrorKind::Unsupported,
                    report: Report::unsupported(names, size, why_not.into()),
                    drawn: None,
                    pieces: 0,
                });
            }
            Err(why_not) => return Err(why_not.into()),
        };
        let traffic = Traffic::of(&request, self.bytes)?;
        let time_s = predicted_s(&request, self.bytes, &self.table)?;
        let mut assessment = Assessment {
            report: Report::priced(names, size, &traffic, time_s),
            is_unsupported: false,
            drawn: None,
            pieces: request.pieces,
        };
        let is_listed = self.topology.world_size <= DRAWN_RANKS_MAX;
        let is_verified = self.verify && self.topology.world_size <= VERIFY_RANKS_MAX;
        if is_listed || is_verified {
            let plans = plans(&request)?;
            let report = &mut assessment.report;
            if is_verified {
                prove(report, &plans);
            }
            if is_listed && self.format == Format::Json && report.why_not.is_none() {
                report.sends = Some(exported(&plans)?);
            }
            let caption = Caption {
                bytes: self.bytes,
                time_s,
                traffic,
            };
            assessment.drawn = Some((plans, caption));
        }
        Ok(assessment)
    }
}

/// The assessment of one algorithm.
struct Assessment {
    report: Report,
    is_unsupported: bool,
    drawn: Option<(Vec<Plan>, Caption)>,
    pieces: usize,
}

/// The error message if `--draw html` gets more than two algorithms.
const PLAYS: &str =
    "--draw html plays one plan, or two plans on a shared clock; pass one or two algorithms";

/// Returns the selection, and a second algorithm if two plans run together.
fn selected(
    names: &[Selection],
    draw: Option<Drawing>,
) -> Result<(Selection, Option<Algorithm>), String> {
    match names {
        [one] => Ok((*one, None)),
        [..] if draw != Some(Drawing::Html) => {
            Err("--algorithm: two names require --draw html".to_owned())
        }
        [one @ Selection::One(_), Selection::One(other)] => Ok((*one, Some(*other))),
        [..] => Err(PLAYS.to_owned()),
    }
}

/// Returns the selection with the radix from `--radix`.
fn with_radix(
    selection: Selection,
    second: Option<Algorithm>,
    radix: Option<usize>,
) -> Result<Selection, String> {
    let Some(radix) = radix else {
        return Ok(selection);
    };
    let wanted = match selection {
        Selection::One(algorithm) if second.is_none() => {
            algorithm.with_radix(radix).map_err(String::from)
        }
        _ => Err("a radix requires a single algorithm; pass --algorithm NAME".to_owned()),
    };
    let refusal = |why: String| format!("--radix {radix}: {why}");
    wanted.map(Selection::One).map_err(refusal)
}

fn is_set(name: &str, value: &str) -> bool {
    std::env::var(name).is_ok_and(|set| set.trim() == value)
}

/// Runs the verifier and adds its result to the report.
fn prove(report: &mut Report, plans: &[Plan]) {
    match verify(plans) {
        Ok(proof) => {
            report.verified = Some(true);
            report.bits_agree = Some(proof.bits_agree);
        }
        Err(fault) => {
            report.verified = Some(false);
            report.why_not = Some(fault.to_string());
        }
    }
}

/// Returns the line under a drawing that reports a successful verification.
fn verdict(report: &Report) -> &'static str {
    match (report.verified, report.bits_agree) {
        (Some(true), Some(true)) => "verified: all ranks end with the same bits\n",
        (Some(true), _) => "verified\n",
        _ => "",
    }
}

fn answer(arguments: &Arguments) -> Result<(String, Option<String>), String> {
    let inquiry = PlanQuery::of(arguments)?;
    let (algorithms, why) = inquiry.algorithms()?;
    let assessments = algorithms.into_iter().map(|one| inquiry.assess(one));
    let mut assessments = assessments.collect::<Result<Vec<_>, _>>()?;
    let mut out = match (inquiry.draw, inquiry.format) {
        (Some(Drawing::Html), _) => page(&inquiry, &mut assessments)?,
        (Some(draw), _) => drawings(&assessments, draw)?,
        (None, Format::Table) => table(&inquiry, &assessments),
        (None, Format::Csv) => rows(&assessments)?,
        (None, Format::Json) => {
            let objects = assessments.iter().map(|one| one.report.to_json() + "\n");
            objects.collect()
        }
    };
    let has_text = matches!(inquiry.draw, None | Some(Drawing::Text));
    if let Some(why) = why.filter(|_| has_text && inquiry.format == Format::Table) {
        out.push_str(&why);
        out.push('\n');
    }
    Ok((out, fault(&assessments)))
}

/// Returns the drawings of all plans.
fn drawings(assessments: &[Assessment], draw: Drawing) -> Result<String, String> {
    let mut out = String::new();
    for assessment in assessments {
        if let Some((plans, caption)) = &assessment.drawn {
            out += &match draw {
                Drawing::Svg => draw::svg(plans, caption)?,
                _ => draw::text(plans, caption)? + verdict(&assessment.report) + "\n",
            };
        }
    }
    Ok(out)
}

/// Returns the page that plays the plans.
fn page(inquiry: &PlanQuery, assessments: &mut [Assessment]) -> Result<String, String> {
    let mut played = Vec::new();
    for (plans, caption) in assessments.iter_mut().filter_map(|one| one.drawn.take()) {
        let request = &plans[0].request;
        let schedule = schedule(request, inquiry.bytes, 1, &inquiry.table).map_err(|why_not| {
            let algorithm = request.algorithm;
            format!("--draw html: {algorithm}: {why_not}; pass fewer pieces with --chunks")
        })?;
        played.push(Played {
            parts: parts(request, inquiry.bytes, &inquiry.table)?,
            plans,
            caption,
            schedule,
        });
    }
    let costs = costs(inquiry.collective, &inquiry.topology, &inquiry.table);
    Ok(html(&subject(inquiry), &costs, &played)?)
}

/// Returns a line that describes the first algorithm that failed verification.
fn fault(assessments: &[Assessment]) -> Option<String> {
    let report = assessments
        .iter()
        .map(|assessment| &assessment.report)
        .find(|report| report.verified == Some(false))?;
    Some(format!(
        "verification of {} by {} failed: {}",
        report.collective,
        report.algorithm,
        report.why_not.as_deref().unwrap_or("no reason given")
    ))
}

/// Returns, for example, "broadcast of 1 MiB over 8 ranks, root 0".
fn subject(inquiry: &PlanQuery) -> String {
    let size = match inquiry.collective {
        Collective::Barrier => String::new(),
        _ => format!(" of {}", Bytes(inquiry.bytes as f64)),
    };
    let root = if inquiry.collective.is_rooted() {
        format!(", root {}", inquiry.root)
    } else {
        String::new()
    };
    format!(
        "{}{size} over {} ranks{root}",
        inquiry.collective, inquiry.topology.world_size
    )
}
