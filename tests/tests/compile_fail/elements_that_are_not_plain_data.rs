//! Elements are whatever bytes a copy brings: not every type can be that.
use memmgr::{MemoryManager, Stream};

fn main() -> memmgr::Result<()> {
    let (manager, stream) = (MemoryManager::instance(), Stream::new()?);
    let _booleans = manager.pinned::<bool>(16)?;
    let _references = manager.pinned::<&'static str>(16)?;
    let _boxes = manager.device::<Box<u8>>(16, &stream)?;
    Ok(())
}
