use super::*;

#[test]
fn budget_limits_only_unauthenticated_peers() {
    let now = Instant::now();
    let mut budget = Budget {
        share: 10,
        paid_until: now,
    };
    assert!(budget.next() <= now);
    let second = Duration::from_secs(1);
    budget.charge(now, second / 10);
    assert_eq!(budget.next(), now + second * 9 / 10 - STRANGERS_BURST);
    budget.refund(second / 10);
    assert!(budget.next() <= now);
    // Unused time does not accumulate.
    budget.charge(now + 60 * second, second / 10);
    assert!(budget.next() > now + 60 * second);
    budget.share = 1;
    budget.paid_until = now;
    budget.charge(now, second);
    assert!(
        budget.next() <= now,
        "a share of 1 must not limit the peers"
    );
}
