//! On another thread the per-thread default stream is another stream.
use memmgr::PerThreadStream;

fn main() -> memmgr::Result<()> {
    let stream = PerThreadStream::new()?;
    std::thread::scope(|scope| {
        scope.spawn(|| stream.synchronize());
    });
    std::thread::spawn(move || stream.synchronize());
    Ok(())
}
