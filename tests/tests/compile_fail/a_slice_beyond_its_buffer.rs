//! A view lives no longer than its buffer, whether that is dropped or given away.
use memmgr::MemoryManager;

fn main() -> memmgr::Result<()> {
    let view = {
        let host = MemoryManager::instance().pinned::<u8>(16)?;
        host.as_slice()?
    };
    println!("{view:?}");
    let host = MemoryManager::instance().pinned::<u8>(16)?;
    let view = host.as_slice()?;
    drop(host);
    println!("{view:?}");
    Ok(())
}
