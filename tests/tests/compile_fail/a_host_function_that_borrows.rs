//! A host function runs at some time later: it owns what it uses.
use memmgr::{MemoryManager, Stream};

fn main() -> memmgr::Result<()> {
    let stream = Stream::new()?;
    let host = MemoryManager::instance().pinned::<u8>(16)?;
    let view = host.as_slice()?;
    stream.launch_host(move || println!("{view:?}"))?;
    Ok(())
}
