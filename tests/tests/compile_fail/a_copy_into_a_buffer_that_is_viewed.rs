//! A copy to the host writes the buffer: nobody may look at it meanwhile.
use memmgr::{MemoryManager, Stream};

fn main() -> memmgr::Result<()> {
    let (manager, stream) = (MemoryManager::instance(), Stream::new()?);
    let mut host = manager.pinned::<u8>(16)?;
    let device = manager.device::<u8>(16, &stream)?;
    let view = host.as_slice()?;
    let _ = stream.copy_to_host(&device, &mut host)?;
    println!("{view:?}");
    Ok(())
}
