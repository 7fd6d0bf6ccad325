//! A transfer owns its buffers until it gives them back.
use memmgr::{MemoryManager, Stream};

fn main() -> memmgr::Result<()> {
    let (manager, stream) = (MemoryManager::instance(), Stream::new()?);
    let mut host = manager.pinned::<u8>(16)?;
    let device = manager.device::<u8>(16, &stream)?;
    let transfer = stream.transfer_to_device(host, device)?;
    host.as_mut_slice()?.fill(1);
    stream.memset(&device, 0)?.wait()?;
    let _ = transfer.wait()?;
    Ok(())
}
