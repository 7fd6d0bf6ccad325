//! What each step of a random program does: the calls, and what the oracle is told of them.

use super::program::{DEVICES, Span, Step, What};
use super::programs::*;
use super::run::{Run, Target, whole};
use super::world::{Block, Class, Kind, Source, new_event};
use cudart_sim::{By as Told, host_read, host_write, launch, launch_host, moment, ordered};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

pub fn set(to: usize, span: Span, plain: bool, s: Stream) -> u32 {
    let (
        to,
        Span {
            width,
            height,
            pitch,
            ..
        },
    ) = (to as Pointer, span);
    match (plain, height) {
        (true, _) => cuda!(cudaMemset(to, 1, width)),
        (_, 1) => cuda!(cudaMemsetAsync(to, 1, width, s)),
        _ => cuda!(cudaMemset2DAsync(to, pitch, 1, width, height, s)),
    }
}

pub fn move_rows(to: (usize, Span), from: (usize, Span), plain: bool, s: Stream) -> u32 {
    let ((to, t), (from, f)) = (to, from);
    let (to, from) = (to as Pointer, from as Pointer);
    let Span { width, height, .. } = t;
    match (plain, height) {
        (true, 1) => cuda!(cudaMemcpy(to, from, width, ANY)),
        (false, 1) => cuda!(cudaMemcpyAsync(to, from, width, ANY, s)),
        (true, _) => cuda!(cudaMemcpy2D(to, t.pitch, from, f.pitch, width, height, ANY)),
        (false, _) => {
            cuda!(cudaMemcpy2DAsync(
                to, t.pitch, from, f.pitch, width, height, ANY, s
            ))
        }
    }
}

impl Run<'_> {
    pub fn step(&mut self, step: &Step) {
        // A step that has nothing to work on does nothing.
        let _ = self.take(step);
    }

    /// The lane of calls that take no stream.
    fn legacy(&self, lane: usize) -> usize {
        let device = self.world.lanes[lane].device;
        let lanes = &self.world.lanes;
        lanes
            .iter()
            .position(|l| l.kind == Kind::Legacy && l.device == device)
            .unwrap_or(0)
    }

    fn take(&mut self, step: &Step) -> Option<()> {
        let lane = step.lane % self.world.lanes.len();
        let thread = step.thread;
        match &step.what {
            What::Fill(to, plain) => {
                let lane = if *plain { self.legacy(lane) } else { lane };
                let (to, plain) = (*to, *plain);
                let device = self.world.lanes[lane].device;
                let locked = self.world.find(to.memory, device)?.2 == Class::Locked;
                let (touch, at) = (self.span(to, true, lane)?, self.at(to, lane)?);
                let what = match (plain, to.height) {
                    (true, _) if locked => "plain fill of page-locked memory",
                    (true, _) => "plain fill",
                    (_, 1) => "fill",
                    _ => "fill 2-D",
                };
                let node = self.submit(step, lane, vec![touch], &[], what, move |s| {
                    set(at, to, plain, s)
                });
                if plain && locked && node.is_some() {
                    self.oracle.wait(&[node]);
                }
            }
            What::Copy(to, from, plain) => self.copy(step, lane, *to, *from, *plain)?,
            What::Peer(to, from) => {
                let (to, from) = (*to, *from);
                let touches = vec![self.span(from, false, lane)?, self.span(to, true, lane)?];
                let (t, f) = (self.at(to, lane)?, self.at(from, lane)?);
                self.submit(step, lane, touches, &[], "peer copy", move |s| {
                    cuda!(cudaMemcpyPeerAsync(
                        t as Pointer,
                        1,
                        f as Pointer,
                        0,
                        to.width,
                        s
                    ))
                });
            }
            What::Kernel(x, y) => {
                let touches = vec![self.span(*x, false, lane)?, self.span(*y, true, lane)?];
                let (a, b) = (self.at(*x, lane)?, self.at(*y, lane)?);
                let (m, n) = (x.width, y.width);
                self.submit(step, lane, touches, &[], "launch", move |s| {
                    launch(s, &[(a as Pointer, m)], &[(b as Pointer, n)], |_| {}).0
                });
            }
            What::HostFunction(x, y) => {
                let touches = vec![self.span(*x, false, lane)?, self.span(*y, true, lane)?];
                let (a, b) = (self.at(*x, lane)?, self.at(*y, lane)?);
                let (m, n) = (x.width, y.width);
                self.submit(step, lane, touches, &[], "launch_host", move |s| {
                    launch_host(s, &[(a as Pointer, m)], &[(b as Pointer, n)], || {}).0
                });
            }
            What::SilentHostFunction => {
                extern "C" fn nothing(_: Pointer) {}
                self.submit(step, lane, Vec::new(), &[], "cudaLaunchHostFunc", |s| {
                    cuda!(cudaLaunchHostFunc(s, Some(nothing), null_mut()))
                });
            }
            What::HostRead(x) | What::HostWrite(x) => {
                let write = matches!(step.what, What::HostWrite(_));
                let ((touch, wrong), at) = (self.span(*x, write, 0)?, self.at(*x, 0)?);
                let (at, len) = (at as Pointer, x.width);
                let what = if write { "host write" } else { "host read" };
                self.host(step, vec![touch], wrong, what, || match write {
                    true => host_write(at, len),
                    false => host_read(at, len),
                });
            }
            What::Record(e) => {
                let event = &self.world.events[*e];
                (event.device == self.world.lanes[lane].device).then_some(())?;
                let handle = event.handle;
                let again = event.recorded.is_some();
                self.world.events[*e].recorded = self.record(lane, handle, thread);
                if again {
                    self.count("an event recorded again", Some(lane));
                }
            }
            What::Wait(e) => {
                let event = &self.world.events[*e];
                let (handle, recorded) = (event.handle, event.recorded);
                if recorded.is_some() {
                    self.wait(lane, handle, recorded, thread);
                } else {
                    self.count("a wait for an event never recorded", Some(lane));
                    let code = self.call(lane, thread, move |s| {
                        cuda!(cudaStreamWaitEvent(s, handle as _, 0))
                    });
                    self.need(code, "cudaStreamWaitEvent");
                }
            }
            What::EventSynchronize(e) | What::EventQuery(e) => {
                let event = &self.world.events[*e];
                let (handle, recorded) = (event.handle, event.recorded);
                let ask = matches!(step.what, What::EventQuery(_));
                let code = self.threads.on(thread, event.device, move || match ask {
                    true => cuda!(cudaEventQuery(handle as _)),
                    false => cuda!(cudaEventSynchronize(handle as _)),
                });
                if ask && code == 600 {
                    return None;
                }
                self.need(code, "waiting for an event");
                let what = match ask {
                    true => "cudaEventQuery answered yes",
                    false => "cudaEventSynchronize",
                };
                self.count(what, None);
                self.oracle.wait(&[recorded]);
            }
            What::Elapsed => {
                let timing: Vec<_> = self.world.events.iter().filter(|e| e.timing).collect();
                let recorded: Vec<_> = timing.iter().map(|e| e.recorded).collect();
                recorded.iter().all(Option::is_some).then_some(())?;
                let mut ms = 0.0;
                let (a, b) = (timing[0].handle, timing[1].handle);
                let code = cuda!(cudaEventElapsedTime(&mut ms, a as _, b as _));
                if code != 600 {
                    self.need(code, "cudaEventElapsedTime");
                    self.count("cudaEventElapsedTime", None);
                    self.oracle.wait(&recorded);
                }
            }
            What::NewEvent(e) => {
                self.count("an event destroyed and another made", None);
                let code = cuda!(cudaEventDestroy(self.world.events[*e].handle as _));
                self.need(code, "cudaEventDestroy");
                self.world.events[*e] = new_event(self.threads, *e);
            }
            What::StreamSynchronize => self.synchronize(lane, thread),
            What::StreamQuery => {
                self.query(lane, thread);
            }
            What::DeviceSynchronize(d) => self.device_synchronize(*d, thread),
            What::NewStream => self.replace(lane),
            What::NewThread => self.renew(thread),
            What::MallocAsync | What::Malloc | What::HostAlloc => self.allocate(step, lane)?,
            What::FreeAsync(n) => {
                let of_pools = self.world.blocks.iter().enumerate();
                let of_pools: Vec<usize> = of_pools
                    .filter(|(_, b)| b.source == Source::MallocAsync)
                    .map(|(i, _)| i)
                    .collect();
                let which = *of_pools.get(n % of_pools.len().max(1))?;
                let Block { at, buffer, .. } = self.world.blocks[which];
                let touch = (whole(buffer), false);
                let node =
                    self.submit(step, lane, vec![touch], &[], "cudaFreeAsync", move |s| {
                        cuda!(cudaFreeAsync(at as Pointer, s))
                    })?;
                // Nothing can be compared with it, for the memory is nobody's; and reports cling to accesses.
                self.oracle.nodes[node].touches.clear();
                self.world.blocks.remove(which);
            }
            What::Free(n) => self.free(step, *n)?,
            What::ReportAllocation(block, by, segment) => {
                self.report_allocation(step, lane, *block, *by, *segment)?;
            }
            What::ReportFree(block, by, segment) => {
                self.report_free(step, lane, *block, *by, *segment)?;
            }
            What::Map(slot, piece) => {
                if let (_, Some(old)) = self.world.slots[*slot] {
                    let touch = whole(super::world::PHYSICAL + old);
                    let known = self.oracle.closure(&[self.oracle.host]);
                    // Work that has not run yet would meet other memory, or none.
                    if !self
                        .oracle
                        .races(&known, std::slice::from_ref(&touch))
                        .is_empty()
                    {
                        (0..DEVICES).for_each(|d| self.device_synchronize(d, thread));
                    }
                    self.host(step, vec![touch], false, "a chunk moved", || {});
                }
                self.world.map(*slot, *piece);
                self.judge(&[], false, "mapping");
            }
            What::Capture(g, nodes) => self.capture(*g, nodes),
            What::Launch(g) => {
                let graph = self.world.graphs[*g].as_ref()?;
                (self.world.lanes[lane].device == 0).then_some(())?;
                let touches = graph.touches.iter().map(|t| (t.clone(), false)).collect();
                let (exec, last) = (graph.exec, graph.last);
                let node =
                    self.submit(step, lane, touches, &[last], "cudaGraphLaunch", move |s| {
                        cuda!(cudaGraphLaunch(exec as _, s))
                    })?;
                self.world.graphs[*g].as_mut()?.last = Some(node);
            }
            What::Tell(to) => {
                let (send, receive) = mpsc::channel();
                let told = self.submit(step, lane, Vec::new(), &[], "moment", move |s| {
                    launch_host(s, &[], &[], move || drop(send.send(moment()))).0
                });
                // The lazy schedule has to be asked.
                self.query(lane, thread);
                let Ok(moment) = receive.recv_timeout(Duration::from_secs(60)) else {
                    self.fail("the host function did not run".into());
                    return None;
                };
                match to.map(|t| t % self.world.lanes.len()) {
                    None => {
                        ordered(&moment, Told::Host);
                        self.oracle.wait(&[told]);
                    }
                    Some(to) => {
                        ordered(&moment, Told::StreamId(self.world.lanes[to].id));
                        let last = self.world.lanes[to].last;
                        let before = self.oracle.closure(&[last, told]);
                        self.add(to, before, Vec::new());
                    }
                }
                self.count("ordered", to.map(|t| t % self.world.lanes.len()));
            }
        }
        Some(())
    }

    fn copy(&mut self, step: &Step, lane: usize, to: Span, from: Span, plain: bool) -> Option<()> {
        let lane = if plain { self.legacy(lane) } else { lane };
        let device = self.world.lanes[lane].device;
        let (t, f) = (self.at(to, lane)?, self.at(from, lane)?);
        let (target, source) = (
            self.world.find(to.memory, device)?,
            self.world.find(from.memory, device)?,
        );
        let (reads, writes) = (self.span(from, false, lane)?, self.span(to, true, lane)?);
        let (first, last) = (to.at, to.at + to.pitch * to.height);
        // Memory is not copied onto itself.
        if target.1 == source.1 && from.at < last && first < from.at + from.pitch * from.height {
            return None;
        }
        let call = move |s: Stream| move_rows((t, to), (f, from), plain, s);
        use Class::{Device, Pageable};
        match (target.2, source.2) {
            (Device, Pageable) => {
                // The host reads the source, a plain copy after having waited for its stream.
                let more = move |run: &Self| match plain {
                    true => run.ends(lane),
                    false => Vec::new(),
                };
                let (read, _) = reads;
                let read = [read];
                let mut races = self.admit(step, Target::Host, &more, &read, false)?;
                let wrong = writes.1;
                let writes = vec![writes.0];
                let none = |_: &Self| Vec::new();
                races.extend(self.admit(step, Target::Lane(lane), &none, &writes, wrong)?);
                let what = match plain {
                    true => "plain copy from pageable memory",
                    false => "copy from pageable memory",
                };
                if plain {
                    self.oracle.wait(&self.ends(lane));
                }
                let before = self.oracle.closure(&[self.oracle.host]);
                self.oracle.host = Some(self.oracle.add(before, read.into(), 0));
                self.enqueue(lane, step.thread, writes, &[], what, call);
                self.judge(&races, wrong, what);
            }
            (to, from) => {
                let hosts = to != Device && from != Device;
                let waits = hosts || to == Pageable || plain && (to != Device || from != Device);
                let what = match (to == Device, from == Device, plain) {
                    (true, true, false) => "copy inside devices",
                    (true, true, true) => "plain copy inside devices",
                    (false, false, _) => "copy between host memory",
                    (_, _, true) => "plain copy of page-locked memory",
                    _ if to == Pageable => "copy to pageable memory",
                    _ => "copy of page-locked memory",
                };
                let node = self.submit(step, lane, vec![reads, writes], &[], what, call)?;
                if waits {
                    self.oracle.wait(&[Some(node)]);
                }
            }
        }
        Some(())
    }
}
