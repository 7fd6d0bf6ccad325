//! What an imagined allocator of a random program reports, and what the oracle is told of it.

use super::oracle::Touch;
use super::program::{By, Step};
use super::programs::*;
use super::run::{Run, Target};
use super::world::{BLOCK, SEGMENT};
use cudart_sim::By as Told;

impl Run<'_> {
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

    pub fn report_allocation(
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
            self.allocated.remove(&(buffer, block));
        } else {
            let none = |_: &Self| Vec::new();
            let touches = vec![touch];
            let races = self.admit(step, Target::Lane(lane), &none, &touches, false)?;
            self.count("a block allocated by a stream", Some(lane));
            self.tell(lane, step.thread, by, call);
            let last = self.world.lanes[lane].last;
            let before = self.oracle.closure(&[last, self.oracle.host]);
            let node = self.add(lane, before, touches);
            self.allocated.insert((buffer, block), node);
            self.judge(&races, false, "a block allocated by a stream");
        }
        if buffer == SEGMENT {
            self.world.live[block] = true;
        }
        Some(())
    }

    pub fn report_free(
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
                // For whom it was allocated counts no longer; who has touched it does.
                if let Some(node) = self.allocated.get(&(buffer, block)) {
                    self.oracle.nodes[*node]
                        .touches
                        .retain(|t| t.buffer != buffer || !t.bytes.has(block * BLOCK));
                }
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
        self.allocated.remove(&(buffer, block));
        if buffer == SEGMENT {
            self.world.live[block] = false;
        }
        Some(())
    }
}
