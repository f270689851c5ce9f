//! Memory that says which accesses are not ordered.

use super::clock::{Access, Epoch};
/// What lies at an address.
#[derive(Clone, Debug)]
struct Cell {
    value: f64,
    /// Bytes of the element that begins here; 0 where one began in front of it.
    width: u64,
    write: Epoch,
    /// The last read of each agent since then.
    reads: Vec<Epoch>,
}

/// Memory by addresses in bytes, of which one in two may hold an element.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Vec<Option<Cell>>);

/// The smallest element.
const UNIT: u64 = 2;

impl Memory {
    fn cell(&mut self, address: u64) -> &mut Option<Cell> {
        let at = (address / UNIT) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        &mut self.0[at]
    }

    /// Writes an element.
    ///
    /// # Errors
    /// When another write, or a read, of the same bytes may happen at the same time.
    pub(super) fn write(
        &mut self,
        at: u64,
        width: u64,
        value: f64,
        by: Access<'_>,
    ) -> Result<(), String> {
        for address in (at..at + width).step_by(UNIT as usize) {
            let cell = self.cell(address);
            if let Some(old) = cell {
                if !by.clock.sees(old.write) {
                    return Err(format!(
                        "byte {address} is written while another write may still be under way"
                    ));
                }
                if old.reads.iter().any(|read| !by.clock.sees(*read)) {
                    return Err(format!(
                        "byte {address} is written while it may still be read"
                    ));
                }
            }
            let mut reads = cell.take().map_or_else(Vec::new, |old| old.reads);
            reads.clear();
            *cell = Some(Cell {
                value,
                width: if address == at { width } else { 0 },
                write: by.epoch,
                reads,
            });
        }
        Ok(())
    }

    /// Reads an element; gives it and when it was written.
    ///
    /// # Errors
    /// When it was not written, or may be written at the same time.
    pub(super) fn read(
        &mut self,
        at: u64,
        width: u64,
        by: Access<'_>,
    ) -> Result<(f64, Epoch), String> {
        for address in (at..at + width).step_by(UNIT as usize) {
            let Some(cell) = self.cell(address) else {
                return Err(format!("byte {address} is read and was not written"));
            };
            if !by.clock.sees(cell.write) {
                return Err(format!(
                    "byte {address} is read while it may still be written"
                ));
            }
            let own = cell.reads.iter_mut().find(|r| r.agent == by.epoch.agent);
            match own {
                Some(read) => read.time = read.time.max(by.epoch.time),
                None => cell.reads.push(by.epoch),
            }
        }
        match self.cell(at) {
            Some(cell) if cell.width == width => Ok((cell.value, cell.write)),
            Some(_) | None => Err(format!(
                "an element of {width} bytes is read at byte {at}, where none was written"
            )),
        }
    }
}
