#![allow(missing_docs)]
fn main() -> ringtree::Result<()> {
    let comm = ringtree::Communicator::from_env()?;
    for _ in 0..12 {
        let start = std::time::Instant::now();
        let t = comm.measure()?;
        if comm.rank() == 0 {
            println!(
                "{:.1} ms: shm {:.3e} {:.3e} {:.3e} tcp {:.3e} {:.3e} {:.3e}",
                start.elapsed().as_secs_f64() * 1e3,
                t.shm.alpha_s,
                t.shm.beta_s_per_byte,
                t.shm.gamma_s_per_byte,
                t.tcp.alpha_s,
                t.tcp.beta_s_per_byte,
                t.tcp.gamma_s_per_byte
            );
        }
    }
    Ok(())
}
