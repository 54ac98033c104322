//! Implements `ringtree plan`, which shows what a collective will do before it runs.

use crate::names::{Selection, collectives, parse_collective, parse_selection};
use crate::quantity::parse_size;
use crate::{FAILED, FINE, MISUSED};
use ringtree::internal::limits::{DRAWN_RANKS_MAX, PIECES_MAX, RADIX_MAX, VERIFY_RANKS_MAX};
use ringtree::plan::algorithms::{plans, required};
use ringtree::plan::draw::{self, Caption};
use ringtree::plan::internal::cost::{Traffic, schedule};
use ringtree::plan::internal::export::{Report, exported};
use ringtree::plan::internal::parts::Parts;
use ringtree::plan::internal::player::{Played, html};
use ringtree::plan::internal::price::LinkCost;
use ringtree::plan::internal::select::{
    Choice, TuningTable, choose, choose_in_rank_order, predicted_s, scratch_bytes,
};
use ringtree::plan::internal::topology::{Sharing, Topology};
use ringtree::plan::internal::units::{Bytes, Rate, Seconds};
use ringtree::plan::{Algorithm, Collective, Plan, PlanError, PlanErrorKind, Request, verify};
use std::io::Write;
use world::{costs, links, topology};

mod world;

/// The arguments of `ringtree plan`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    #[arg(help = collectives())]
    collective: String,
    /// Algorithm: a name, auto (the algorithm that a call would choose) or all; --draw html also
    /// accepts two names, such as ring,circulant
    #[arg(long, value_name = "NAME|auto|all")]
    algorithm: Option<String>,
    /// Radix of the algorithm, from 2 to 64; equivalent to NAME/K
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    radix: Option<String>,
    /// Number of ranks
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    ranks: Option<String>,
    /// Root rank for broadcast, reduce, gather and scatter
    #[arg(
        long,
        value_name = "R",
        default_value = "0",
        allow_negative_numbers = true
    )]
    root: String,
    /// Size of the complete buffer in bytes; the suffixes K, M and G are powers of 1024
    #[arg(long, default_value = "1M", allow_negative_numbers = true)]
    bytes: String,
    /// Number of pieces per block [default: the number with the shortest predicted time]
    #[arg(long, value_name = "C", allow_negative_numbers = true)]
    chunks: Option<String>,
    /// Number of ranks per host: one number that divides --ranks, or one number per host, such as
    /// 3,5,2, which makes --ranks optional
    #[arg(
        long,
        value_name = "G|G,G,..",
        default_value = "1",
        allow_negative_numbers = true
    )]
    ranks_per_host: String,
    /// Number of hosts at each site, such as 4,4; the hosts at a site share one uplink
    #[arg(long, value_name = "H,H,..", allow_negative_numbers = true)]
    sites: Option<String>,
    /// Message latency between hosts (or through shared memory, if all ranks are on one host), in
    /// ns, us, ms or s [default: from RINGTREE_TUNING or the built-in table]
    #[arg(long, allow_negative_numbers = true)]
    alpha: Option<String>,
    /// Time a message occupies its sender, and then its receiver [default: as for --alpha]
    #[arg(long, allow_negative_numbers = true)]
    overhead: Option<String>,
    /// Bandwidth of a link, in bit, Kbit, Mbit, Gbit or Tbit per second [default: as for --alpha]
    #[arg(long, allow_negative_numbers = true)]
    bandwidth: Option<String>,
    /// Message latency between sites [default: from RINGTREE_TUNING, or ten times --alpha]
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    uplink_alpha: Option<String>,
    /// Bandwidth of a site's uplink in each direction, shared by all ranks at the site [default:
    /// from RINGTREE_TUNING, or a tenth of --bandwidth]
    #[arg(long, value_name = "BANDWIDTH", allow_negative_numbers = true)]
    uplink_bandwidth: Option<String>,
    /// Use only algorithms that RINGTREE_REPRODUCIBLE=1 allows; implied by that setting
    #[arg(long)]
    reproducible: bool,
    /// Verify the plans by symbolic execution (up to 1,024 ranks)
    #[arg(long)]
    verify: bool,
    /// Draw the plan (up to 64 ranks) as text, svg or html, which is a page that plays one plan, or
    /// two plans on a shared clock
    #[arg(long, value_name = "text|svg|html")]
    draw: Option<String>,
    /// Output format: table or json, which has one object per line [default: table]
    #[arg(long, value_name = "table|json")]
    format: Option<String>,
}

/// Runs `ringtree plan` and returns its exit code.
pub(crate) fn execute(arguments: &Arguments) -> u8 {
    match answer(arguments) {
        Ok((output, fault)) => {
            // A reader that has closed standard output (`| head`) is not an error.
            let _ = std::io::stdout().lock().write_all(output.as_bytes());
            match fault {
                None => FINE,
                Some(fault) => {
                    eprintln!("ringtree plan: {fault}");
                    FAILED
                }
            }
        }
        Err(message) => {
            eprintln!("ringtree plan: {message}");
            MISUSED
        }
    }
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Table,
    Json,
    Text,
    Svg,
    Html,
}

/// The parsed arguments.
#[derive(Debug)]
struct Inquiry {
    collective: Collective,
    selection: Selection,
    /// The algorithm whose plan is played next to the plan of `selection`.
    second: Option<Algorithm>,
    topology: Topology,
    root: usize,
    bytes: usize,
    pieces: Option<usize>,
    table: TuningTable,
    is_reproducible: bool,
    verify: bool,
    output: Output,
}

impl Inquiry {
    fn of(arguments: &Arguments) -> Result<Self, String> {
        let collective = parse_collective(&arguments.collective)?;
        let algorithm = arguments
            .algorithm
            .as_deref()
            .ok_or("missing algorithm; pass --algorithm NAME, auto or all")?;
        let output = output(arguments.draw.as_deref(), arguments.format.as_deref())?;
        let (selection, second) = selected(algorithm, output)?;
        let radix = match &arguments.radix {
            Some(text) => Some(parse_count("--radix", text, 2, RADIX_MAX)?),
            None => None,
        };
        let topology = topology(arguments)?;
        let root = parse_count("--root", &arguments.root, 0, topology.world_size - 1)?;
        let pieces = match &arguments.chunks {
            Some(text) => Some(parse_count("--chunks", text, 1, PIECES_MAX)?),
            None => None,
        };
        let inquiry = Self {
            collective,
            selection: with_radix(selection, second, radix)?,
            second,
            root: if collective.is_rooted() { root } else { 0 },
            bytes: parse_size(&arguments.bytes).map_err(|error| format!("--bytes: {error}"))?,
            pieces,
            table: links(arguments, &topology)?,
            topology,
            is_reproducible: arguments.reproducible || is_set("RINGTREE_REPRODUCIBLE", "1"),
            verify: arguments.verify,
            output,
        };
        inquiry.check_drawing()?;
        Ok(inquiry)
    }

    fn check_drawing(&self) -> Result<(), String> {
        let draws = matches!(self.output, Output::Text | Output::Svg | Output::Html);
        if draws && self.topology.world_size > DRAWN_RANKS_MAX {
            return Err(format!("--draw supports up to {DRAWN_RANKS_MAX} ranks"));
        }
        if self.output == Output::Svg && self.selection == Selection::All {
            return Err("--draw svg draws only one algorithm; pass its name or auto".to_owned());
        }
        if self.output == Output::Html && self.selection == Selection::All {
            return Err(PLAYS.to_owned());
        }
        Ok(())
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
                let line = choice.with_breakdown(&self.topology.hosts, &self.table)?;
                Ok((vec![choice.algorithm], Some(line.to_string())))
            }
        }
    }

    /// Returns what a call would choose, or the parameters that a call would choose for the
    /// algorithm `named`.
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
            collective: self.collective,
            algorithm,
            world_size: self.topology.world_size,
            rank: 0,
            root: self.root,
            pieces: self.pieces.unwrap_or(choice.pieces),
            hosts: self.topology.hosts.clone(),
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
        let pieces = request.pieces;
        let traffic = Traffic::of(&request, self.bytes)?;
        let time_s = predicted_s(&request, self.bytes, &self.table)?;
        let mut report = Report::priced(names, size, &traffic, time_s);
        let is_listed = self.topology.world_size <= DRAWN_RANKS_MAX;
        let is_proven = self.verify && self.topology.world_size <= VERIFY_RANKS_MAX;
        if !is_listed && !is_proven {
            return Ok(Assessment {
                report,
                is_unsupported: false,
                drawn: None,
                pieces,
            });
        }
        let plans = plans(&request)?;
        if is_proven {
            prove(&mut report, &plans);
        }
        if is_listed && self.output == Output::Json && report.why_not.is_none() {
            report.sends = Some(exported(&plans)?);
        }
        let caption = Caption {
            bytes: self.bytes,
            time_s,
            traffic,
        };
        Ok(Assessment {
            report,
            is_unsupported: false,
            drawn: Some((plans, caption)),
            pieces,
        })
    }
}

/// The assessment of one algorithm.
struct Assessment {
    report: Report,
    is_unsupported: bool,
    drawn: Option<(Vec<Plan>, Caption)>,
    pieces: usize,
}

/// The error for passing more than two algorithms with `--draw html`.
const PLAYS: &str =
    "--draw html plays one plan, or two plans on a shared clock; pass one or two algorithms";

/// Parses one name, `auto` or `all`, or two names whose plans are played together.
fn selected(text: &str, output: Output) -> Result<(Selection, Option<Algorithm>), String> {
    let Some((one, other)) = text.split_once(',') else {
        return Ok((parse_selection(text)?, None));
    };
    if output != Output::Html {
        return Err(format!("--algorithm {text}: two names require --draw html"));
    }
    if other.contains(',') {
        return Err(PLAYS.to_owned());
    }
    Ok((Selection::One(one.parse()?), Some(other.parse()?)))
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
    let refusal = |why: &dyn std::fmt::Display| format!("--radix {radix}: {why}");
    match selection {
        Selection::One(algorithm) if second.is_none() => {
            let wanted = algorithm.with_radix(radix).map_err(|why| refusal(&why))?;
            Ok(Selection::One(wanted))
        }
        Selection::One(_) | Selection::All | Selection::Auto => Err(refusal(
            &"a radix requires a single algorithm; pass --algorithm NAME",
        )),
    }
}

fn parse_count(name: &str, text: &str, min: usize, max: usize) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (min..=max).contains(count))
        .ok_or_else(|| format!("{name} must be a number from {min} to {max}, not '{text}'"))
}

fn is_set(name: &str, value: &str) -> bool {
    std::env::var(name).is_ok_and(|set| set.trim() == value)
}

fn output(draw: Option<&str>, format: Option<&str>) -> Result<Output, String> {
    match (draw, format) {
        (None, None | Some("table")) => Ok(Output::Table),
        (None, Some("json")) => Ok(Output::Json),
        (Some("text"), None | Some("table")) => Ok(Output::Text),
        (Some("svg"), None | Some("table")) => Ok(Output::Svg),
        (Some("html"), None | Some("table")) => Ok(Output::Html),
        (Some("text" | "svg" | "html"), Some("json")) => {
            Err("--draw and --format json cannot be combined; omit one of them".to_owned())
        }
        (Some("text" | "svg" | "html") | None, Some(other)) => {
            Err(format!("--format must be table or json, not '{other}'"))
        }
        (Some(other), _) => Err(format!("--draw must be text, svg or html, not '{other}'")),
    }
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
    let inquiry = Inquiry::of(arguments)?;
    let (algorithms, why) = inquiry.algorithms()?;
    let mut assessments = Vec::new();
    for algorithm in algorithms {
        assessments.push(inquiry.assess(algorithm)?);
    }
    let mut out = String::new();
    match inquiry.output {
        Output::Json => {
            for assessment in &assessments {
                out.push_str(&assessment.report.to_json());
                out.push('\n');
            }
        }
        Output::Table => out = table(&inquiry, &assessments),
        Output::Html => out = page(&inquiry, &mut assessments)?,
        Output::Text | Output::Svg => {
            for assessment in &assessments {
                let Some((plans, caption)) = &assessment.drawn else {
                    continue;
                };
                out.push_str(&match inquiry.output {
                    Output::Svg => draw::svg(plans, caption)?,
                    _ => draw::text(plans, caption)? + verdict(&assessment.report) + "\n",
                });
            }
        }
    }
    if let Some(why) = why.filter(|_| matches!(inquiry.output, Output::Table | Output::Text)) {
        out.push_str(&why);
        out.push('\n');
    }
    Ok((out, fault(&assessments)))
}

/// Returns the page that plays the plans.
fn page(inquiry: &Inquiry, assessments: &mut [Assessment]) -> Result<String, String> {
    let mut played = Vec::new();
    for (plans, caption) in assessments.iter_mut().filter_map(|one| one.drawn.take()) {
        let request = &plans[0].request;
        let schedule = schedule(request, inquiry.bytes, 1, &inquiry.table).map_err(|why_not| {
            let algorithm = request.algorithm;
            format!("--draw html: {algorithm}: {why_not}; pass fewer pieces with --chunks")
        })?;
        played.push(Played {
            parts: Parts::of(request, inquiry.bytes, &inquiry.table)?,
            plans,
            caption,
            schedule,
        });
    }
    let costs = costs(inquiry.collective, &inquiry.topology, &inquiry.table);
    Ok(html(&subject(inquiry), &costs, &played)?)
}

/// Returns a line about the first algorithm whose verification failed.
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

/// Returns the table, with one line per algorithm.
fn table(inquiry: &Inquiry, assessments: &[Assessment]) -> String {
    let mut out = heading(inquiry);
    let mut head = vec![
        "algorithm",
        "pieces",
        "rounds",
        "messages",
        "busiest sends",
        "time",
    ];
    if inquiry.verify {
        head.extend(["verified", "bits agree"]);
    }
    let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    let mut lines = vec![head];
    let (planned, others): (Vec<_>, Vec<_>) = assessments
        .iter()
        .partition(|one| one.report.rounds.is_some());
    lines.extend(planned.iter().map(|one| row(one, inquiry.verify)));
    let columns = lines[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    let collective = inquiry.collective;
    let (elsewhere, too_long): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|one| one.is_unsupported);
    if !elsewhere.is_empty() {
        let names: Vec<&str> = elsewhere
            .iter()
            .map(|one| one.report.algorithm.as_str())
            .collect();
        out.push_str(&format!(
            "\nalgorithms that do not implement {collective}: {}\n",
            names.join(", ")
        ));
    }
    for why_not in too_long
        .iter()
        .filter_map(|one| one.report.why_not.as_ref())
    {
        out.push_str(&format!("{why_not}\n"));
    }
    out
}

/// Returns, for example, "broadcast of 1 MiB over 8 ranks, root 0; 6 µs latency, 3 µs per message,
/// 10 Gbit/s".
fn heading(inquiry: &Inquiry) -> String {
    let topology = &inquiry.topology;
    let (tcp, shm) = (speed(&inquiry.table.tcp), speed(&inquiry.table.shm));
    let links = match topology.sharing() {
        Sharing::None => tcp,
        Sharing::Some => {
            let sizes = topology.sizes();
            let ranks = match (sizes.first(), sizes.last()) {
                (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
                _ => topology.size_of(0).to_string(),
            };
            format!("{tcp}; {ranks} per host: {shm}")
        }
        Sharing::All => format!("all on one host: {shm}"),
    };
    let uplinks = match topology.site_count() {
        1 => String::new(),
        sites => {
            let uplink = inquiry.table.between_sites();
            let rate = Rate(8.0 / uplink.beta_s_per_byte);
            let way = Seconds(uplink.alpha_s);
            format!("; between {sites} sites: {way} latency, {rate} per uplink")
        }
    };
    format!("{}; {links}{uplinks}\n\n", subject(inquiry))
}

/// Returns, for example, "broadcast of 1 MiB over 8 ranks, root 0".
fn subject(inquiry: &Inquiry) -> String {
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

/// Returns, for example, "6 µs latency, 3 µs per message, 10 Gbit/s".
fn speed(link: &LinkCost) -> String {
    format!(
        "{} latency, {} per message, {}",
        Seconds(link.alpha_s),
        Seconds(link.overhead_s),
        Rate(8.0 / link.beta_s_per_byte)
    )
}

/// Returns one line of the table.
fn row(assessment: &Assessment, with_proof: bool) -> Vec<String> {
    let report = &assessment.report;
    let number = |value: Option<usize>| value.map_or("-".to_owned(), |value| value.to_string());
    let mut cells = vec![report.algorithm.clone()];
    cells.push(assessment.pieces.to_string());
    cells.push(number(report.rounds));
    cells.push(number(report.messages));
    let sent = report.max_bytes_sent_per_rank.unwrap_or(0);
    cells.push(Bytes(sent as f64).to_string());
    cells.push(Seconds(report.time_us.unwrap_or(0.0) / 1e6).to_string());
    if with_proof {
        for value in [report.verified, report.bits_agree] {
            cells.push(
                value
                    .map_or("not run", |yes| if yes { "yes" } else { "NO" })
                    .to_owned(),
            );
        }
    }
    cells
}
