//! What the names of a timeline's spans say.

pub(crate) fn messages_in(name: &str) -> Vec<String> {
    let at = name.find(['→', '←']).unwrap();
    let (round, peers) = name.split_at(at);
    let mut words = peers.split(' ');
    let arrow = words.next().unwrap();
    words.map(|peer| format!("{round}{arrow} {peer}")).collect()
}
