//! Parses the names of the spans of a timeline.

/// Splits the name of a span into one name per message.
pub(crate) fn messages_in(name: &str) -> Vec<String> {
    let at = name.find(['→', '←']).unwrap();
    let (round, peers) = name.split_at(at);
    let mut words = peers.split(' ');
    let arrow = words.next().unwrap();
    words.map(|peer| format!("{round}{arrow} {peer}")).collect()
}
