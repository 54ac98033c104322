//! Tests arguments that `ringtree plan` rejects.

use super::plan;

/// Arguments and a part of the error message, one case per line: `arguments => part`.
const REFUSED: &str = "
    sum --algorithm auto --ranks 8 => value 'sum' for '<COLLECTIVE>' [possible
    broadcast --algorithm fast --ranks 8 => unknown algorithm 'fast'
    send-recv --algorithm auto --ranks 8 => invalid value 'send-recv'
    broadcast --algorithm chain/3 --ranks 8 => chain has no radix
    broadcast --algorithm binomial/1 --ranks 8 => radix 1 is out of range: expected 2 to 64
    broadcast --algorithm binomial/four --ranks 8 => radix 'four' is not a number: expected 2 to 64
    broadcast --algorithm chain --radix 3 --ranks 8 => --radix 3: chain has no radix
    broadcast --algorithm binomial --radix 65 --ranks 8 => 65 is not in 2..=64
    broadcast --algorithm all --radix 3 --ranks 8 => --algorithm NAME
    all-reduce --algorithm bruck-fold --ranks 64 => needs 64 MiB of scratch space for 1 MiB
    all-reduce --algorithm pairwise --ranks 8 => does not implement all-reduce
    broadcast --algorithm dissemination --ranks 8 => does not implement broadcast
    broadcast --algorithm auto => --ranks N
    broadcast --algorithm , --ranks 8 => unknown algorithm ''
    broadcast -n 8 --bytes= => '' is not a size
    broadcast -n= => cannot parse integer from empty string
    broadcast --algorithm auto --ranks 0 => 0 is not in 1..=1048576
    broadcast --algorithm auto --ranks -1 => invalid value '-1' for '--ranks
    broadcast --algorithm auto --ranks 9999999999 => 9999999999 is not in 1..=1048576
    broadcast --algorithm auto --ranks eight => invalid value 'eight' for '--ranks
    broadcast --algorithm auto --ranks 8 --root 8 => --root 8 is out of range
    broadcast --algorithm auto --ranks 8 --bytes 1Q => is not a size
    broadcast --algorithm auto --ranks 8 --bytes -1 => is not a size
    broadcast --algorithm auto --ranks 8 --chunks 0 => invalid value '0' for '--chunks
    broadcast --algorithm auto --ranks 8 --latency 20 => is not a time
    broadcast --algorithm auto --ranks 8 --latency -5us => a time must be at least 0
    broadcast --algorithm auto --ranks 8 --overhead 20 => is not a time
    broadcast --algorithm auto --ranks 8 --bandwidth 10GB => is not a rate
    broadcast --algorithm auto --ranks 8 --bandwidth 0Gbit => is not a rate
    broadcast --algorithm auto --ranks 8 --bandwidth -1Gbit => is not a rate
    broadcast --algorithm auto --ranks 8 --ranks-per-host 3 => must divide the number of ranks
    broadcast --algorithm auto --ranks 8 --ranks-per-host 0 => 0 is not in 1..=1024
    broadcast --algorithm auto --ranks 8 --ranks-per-host 9 => must divide the number of ranks
    broadcast --algorithm auto --ranks 2K --ranks-per-host 2 => invalid value '2K' for '--ranks
    broadcast --algorithm auto --ranks 2048 --ranks-per-host 2048 => 2048 is not in 1..=1024
    broadcast --algorithm auto --ranks 8 --ranks-per-host 3,4 => the hosts have 7 ranks in total
    broadcast --algorithm auto --ranks-per-host 3,0 => 0 is not in 1..=1024
    broadcast --algorithm auto --ranks-per-host 3, => invalid value '' for '--ranks-per-host
    broadcast --algorithm auto --ranks-per-host 3 => --ranks N
    broadcast --algorithm auto --ranks 8 --sites 4,3 => the sites have 7 hosts in total, expected 8
    broadcast --ranks 8 --ranks-per-host 4 --sites 4,4 => hosts in total, expected 2
    broadcast --algorithm auto --ranks 8 --sites 8,0 => 0 is not in 1..=1048576
    broadcast --algorithm auto --ranks 8 --uplink-alpha 20 => is not a time
    broadcast --algorithm auto --ranks 8 --uplink-bandwidth 1GB => is not a rate
    broadcast --algorithm auto --ranks 8 --format xml => [possible values: table, csv, json]
    broadcast --algorithm auto --ranks 8 --draw png => [possible values: text, svg, html]
    broadcast --algorithm auto --ranks 8 --draw svg --format json => cannot be combined
    broadcast --algorithm all --ranks 8 --draw svg => one algorithm
    broadcast --algorithm auto --ranks 65 --draw text => up to 64 ranks
    broadcast --algorithm auto --ranks 65 --draw html => up to 64 ranks
    broadcast --algorithm auto --ranks 8 --draw html --format json => cannot be combined
    broadcast --algorithm all --ranks 8 --draw html => one plan, or two
    all-reduce --algorithm ring,circulant,flat --ranks 8 --draw html => one plan, or two
    all-reduce --algorithm ring,circulant --ranks 8 => two names require --draw html
    all-reduce --algorithm ring,circulant --ranks 8 --draw svg => two names require --draw html
    all-reduce --algorithm ring,circulant --ranks 8 --format json => two names require --draw html
    all-reduce --algorithm ring,fast --ranks 8 --draw html => unknown algorithm 'fast'
    all-reduce --algorithm ring,pairwise --ranks 8 --draw html => does not implement all-reduce
    all-reduce --algorithm ring,circulant --radix 3 --ranks 8 --draw html => --algorithm NAME
    all-reduce --algorithm circulant --bytes 64M --ranks 8 --draw html => plays at most 2048
    all-reduce --algorithm circulant --bytes 1G --ranks 8 --draw html => fewer pieces with --chunks
";

#[test]
fn invalid_arguments_fail_in_one_line() {
    for case in REFUSED.lines().filter(|line| !line.is_empty()) {
        let (line, reason) = case.split_once(" => ").unwrap();
        let output = plan(line);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {message}");
        assert!(output.stdout.is_empty(), "{line} printed something");
        assert_eq!(message.lines().count(), 1, "{line}: {message}");
        assert!(message.contains(reason), "{line}: {message}");
    }
}
