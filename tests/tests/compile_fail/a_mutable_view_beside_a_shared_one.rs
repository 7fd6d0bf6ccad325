//! A view borrows its buffer: a mutable one excludes all others.
use memmgr::MemoryManager;

fn main() -> memmgr::Result<()> {
    let mut host = MemoryManager::instance().pinned::<u8>(16)?;
    let shared = host.as_slice()?;
    let mutable = host.as_mut_slice()?;
    mutable.fill(shared.len() as u8);
    println!("{shared:?}");
    Ok(())
}
