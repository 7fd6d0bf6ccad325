//! Memory and graphs that a random program makes and gives up.

use super::program::{DEVICES, Span, Step, What};
use super::programs::*;
use super::run::{Run, whole};
use super::steps::{move_rows, set};
use super::world::{Block, Graph, Source};
use cudart_sim::sys;
use std::ptr::null_mut;

impl Run<'_> {
    pub fn allocate(&mut self, step: &Step, lane: usize) -> Option<()> {
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

    pub fn free(&mut self, step: &Step, n: usize) -> Option<()> {
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

    pub fn capture(&mut self, g: usize, nodes: &[(Span, Option<Span>)]) {
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
