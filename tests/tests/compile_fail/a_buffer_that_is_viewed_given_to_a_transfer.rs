//! A buffer that somebody looks at cannot be given away.
use memmgr::{MemoryManager, Stream};

fn main() -> memmgr::Result<()> {
    let (manager, stream) = (MemoryManager::instance(), Stream::new()?);
    let host = manager.pinned::<u8>(16)?;
    let device = manager.device::<u8>(16, &stream)?;
    let view = host.as_slice()?;
    let transfer = stream.transfer_to_host(device, host)?;
    println!("{view:?}");
    let _ = transfer.wait()?;
    Ok(())
}
