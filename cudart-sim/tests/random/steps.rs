//! What each step of a random program does: the calls, and what the oracle is told of them.

use super::oracle::Touch;
use super::program::{By, DEVICES, Span, Step, What};
use super::programs::*;
use super::run::{Run, Target, whole};
use super::world::{BLOCK, Block, Class, Graph, Kind, SEGMENT, Source, new_event};
use cudart_sim::{By as Told, host_read, host_write, launch, launch_host, moment, ordered, sys};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

fn set(to: usize, span: Span, plain: bool, s: Stream) -> u32 {
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

fn move_rows(to: (usize, Span), from: (usize, Span), plain: bool, s: Stream) -> u32 {
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

    fn allocate(&mut self, step: &Step, lane: usize) -> Option<()> {
        (self.world.blocks.len() < 4).then_some(())?;
        let device = self.world.lanes[lane].device;
        let (source, what, at) = match step.what {
            What::MallocAsync => {
                let at = self.call(lane, step.thread, |s| malloc_async(256, s) as usize);
                (Source::MallocAsync, "cudaMallocAsync", at)
            }
            What::Malloc => {
                let at = self
                    .threads
                    .on(step.thread, device, || malloc(256) as usize);
                (Source::Malloc, "cudaMalloc", at)
            }
            _ => {
                let at = self
                    .threads
                    .on(step.thread, device, || pinned(256) as usize);
                (Source::HostAlloc, "cudaHostAlloc", at)
            }
        };
        self.count(what, Some(lane));
        let buffer = self.world.buffers;
        self.world.buffers += 1;
        self.world.blocks.push(Block {
            at,
            buffer,
            source,
            device,
        });
        if source == Source::MallocAsync {
            // A new point in its stream, but nothing by which the default streams would order others.
            let last = self.world.lanes[lane].last;
            let before = self.oracle.closure(&[last, self.oracle.host]);
            self.add(lane, before, vec![whole(buffer)]);
        }
        self.judge(&[], false, what);
        Some(())
    }

    fn free(&mut self, step: &Step, n: usize) -> Option<()> {
        let count = self.world.blocks.len();
        (count > 0).then_some(())?;
        let which = n % count;
        let block = self.world.blocks[which];
        let waits: &[usize] = match block.source {
            // It waits for nobody.
            Source::MallocAsync => &[],
            Source::Malloc => &[block.device],
            Source::HostAlloc => &[0, 1],
        };
        for device in waits {
            self.oracle.wait(&self.of_device[*device].clone());
        }
        let (p, code) = (block.at as Pointer, std::cell::Cell::new(0));
        let (what, host) = match block.source {
            Source::MallocAsync => ("cudaFree of a pool's memory", false),
            Source::Malloc => ("cudaFree", false),
            Source::HostAlloc => ("cudaFreeHost", true),
        };
        let freed = self.host(step, vec![whole(block.buffer)], false, what, || {
            code.set(match host {
                true => cuda!(cudaFreeHost(p)),
                false => cuda!(cudaFree(p)),
            });
        });
        self.need(code.get(), what);
        if freed {
            self.world.blocks.remove(which);
        } else {
            // Nothing waited after all.
            (0..DEVICES).for_each(|d| self.device_synchronize(d, 0));
        }
        Some(())
    }

    fn told(&self, lane: usize, by: By) -> Told {
        match by {
            By::Host => Told::Host,
            By::Nobody => Told::Nobody,
            By::Handle => Told::Stream(self.world.lanes[lane].handle as Stream),
            By::Id | By::Gone => Told::StreamId(self.world.lanes[lane].id),
        }
    }

    /// A handle means what it means to the thread that has it.
    fn tell(&self, lane: usize, thread: usize, by: By, f: impl FnOnce(Told) + Send + 'static) {
        match by {
            By::Handle => self.call(lane, thread, |s| f(Told::Stream(s))),
            _ => f(self.told(lane, by)),
        }
    }

    fn report_allocation(
        &mut self,
        step: &Step,
        lane: usize,
        block: usize,
        by: By,
        segment: bool,
    ) -> Option<()> {
        let (base, buffer) = self.world.pool(segment);
        let at = base + block * BLOCK;
        let touch = Touch::all(buffer, block * BLOCK, BLOCK);
        let call = move |by| cudart_sim::on_allocate(at as Pointer, BLOCK, by);
        if let By::Host = by {
            let what = "a block allocated by the host";
            self.host(step, vec![touch], false, what, || call(Told::Host))
                .then_some(())?;
        } else {
            let none = |_: &Self| Vec::new();
            let touches = vec![touch];
            let races = self.admit(step, Target::Lane(lane), &none, &touches, false)?;
            self.count("a block allocated by a stream", Some(lane));
            self.tell(lane, step.thread, by, call);
            let last = self.world.lanes[lane].last;
            let before = self.oracle.closure(&[last, self.oracle.host]);
            self.add(lane, before, touches);
            self.judge(&races, false, "a block allocated by a stream");
        }
        if buffer == SEGMENT {
            self.world.live[block] = true;
        }
        Some(())
    }

    fn report_free(
        &mut self,
        step: &Step,
        lane: usize,
        block: usize,
        by: By,
        segment: bool,
    ) -> Option<()> {
        let (base, buffer) = self.world.pool(segment);
        let at = base + block * BLOCK;
        let touch = Touch::all(buffer, block * BLOCK, BLOCK);
        let call = move |by| cudart_sim::on_free(at as Pointer, BLOCK, by);
        match by {
            By::Host => {
                let what = "a block freed by the host";
                self.host(step, vec![touch], false, what, || call(Told::Host))
                    .then_some(())?;
            }
            By::Nobody => {
                self.count("a block freed by nobody", None);
                call(Told::Nobody);
                self.judge(&[], false, "a block freed by nobody");
            }
            By::Gone => {
                // What the checker has forgotten of a stream it cannot judge, so only where there is nothing to find.
                (self.streams_made < 50).then_some(())?;
                let gone = self.gone.last()?;
                let (last, id) = (gone.last?, gone.id);
                let before = self.oracle.closure(&[Some(last), self.oracle.host]);
                let races = self.oracle.races(&before, std::slice::from_ref(&touch));
                let silent = races.is_empty() && !self.oracle.nodes[last].touches.is_empty();
                silent.then_some(())?;
                self.count("a block freed by a stream that is gone", None);
                call(Told::StreamId(id));
                self.oracle.nodes[last].touches.push(touch);
                self.judge(&[], false, "a block freed by a stream that is gone");
            }
            By::Id | By::Handle => {
                // A free is where the stream stands: at its latest access.
                let ends = |run: &Self| {
                    let last = run.world.lanes[lane].last;
                    last.filter(|l| !run.oracle.nodes[*l].touches.is_empty())
                };
                ends(self)?;
                let (none, touches) = (|_: &Self| Vec::new(), vec![touch]);
                let races = self.admit(step, Target::Lane(lane), &none, &touches, false)?;
                let last = ends(self)?;
                self.count("a block freed by a stream", Some(lane));
                self.tell(lane, step.thread, by, call);
                self.oracle.nodes[last].touches.extend(touches);
                self.judge(&races, false, "a block freed by a stream");
            }
        }
        if buffer == SEGMENT {
            self.world.live[block] = false;
        }
        Some(())
    }

    fn capture(&mut self, g: usize, nodes: &[(Span, Option<Span>)]) {
        if let Some(old) = self.world.graphs[g].take() {
            let codes = [
                cuda!(cudaGraphExecDestroy(old.exec as _)),
                cuda!(cudaGraphDestroy(old.graph as _)),
            ];
            self.need(codes[0] + codes[1], "destroying a graph");
        }
        if self.world.capture == 0 {
            self.world.capture = self.threads.on(0, 0, || stream() as usize);
        }
        let s = self.world.capture as Stream;
        let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        let mut touches = Vec::new();
        let mut code = cuda!(cudaSetDevice(0)) + cuda!(cudaStreamBeginCapture(s, mode));
        for (to, from) in nodes {
            let at = |span: Span| self.at(span, 0).unwrap_or_default();
            let write = self.span(*to, true, 0);
            match from {
                Some(from) if from.memory != to.memory => {
                    touches.extend(self.span(*from, false, 0).map(|t| t.0));
                    code += move_rows((at(*to), *to), (at(*from), *from), false, s);
                }
                _ => code += set(at(*to), *to, false, s),
            }
            touches.extend(write.map(|t| t.0));
        }
        code += cuda!(cudaStreamEndCapture(s, &mut graph));
        code += cuda!(cudaGraphInstantiate(&mut exec, graph, 0));
        self.need(code, "a capture");
        self.count("a capture", None);
        self.judge(&[], false, "a capture");
        self.world.graphs[g] = Some(Graph {
            graph: graph as usize,
            exec: exec as usize,
            touches,
            last: None,
        });
    }
}
