//! This does compile, with all that the other files use.
use memmgr::{MemoryManager, PerThreadStream, Stream};

async fn awaited() -> memmgr::Result<()> {
    let (manager, stream) = (MemoryManager::instance(), Stream::new()?);
    let mut host = manager.pinned::<u8>(16)?;
    host.as_mut_slice()?.fill(1);
    println!("{:?}", host.as_slice()?);
    let device = manager.device::<u8>(16, &stream)?;
    let _ = stream.copy_to_host(&device, &mut host)?;
    let (host, device) = stream.transfer_to_device(host, device)?.await?;
    stream.memset(&device, 0)?.await?;
    let (_, host) = stream.transfer_to_host(device, host)?.wait()?;
    stream.launch_host(move || drop(host))?;
    PerThreadStream::new()?.synchronize()
}

fn main() {
    drop(awaited());
}
