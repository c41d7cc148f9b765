//! The draws of one chassis, one cell for each unit of time.

/// Units of time in a block.
const BLOCK: i64 = 4096;

/// Bytes that may still be used.
#[derive(Clone, Debug)]
pub(crate) struct Room(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Full;

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), Full> {
        self.0 = self.0.checked_sub(bytes).ok_or(Full)?;
        Ok(())
    }
}

/// Steps of the meter's resolution, 0 where nothing was read. Two bytes do for nearly all chassis.
#[derive(Clone, Debug)]
enum Block {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

const NARROW: usize = BLOCK as usize * size_of::<u16>();
const WIDE: usize = BLOCK as usize * size_of::<u32>();

impl Block {
    fn bytes(&self) -> usize {
        match self {
            Self::Narrow(_) => NARROW,
            Self::Wide(_) => WIDE,
        }
    }

    fn get(&self, at: usize) -> u32 {
        match self {
            Self::Narrow(cells) => cells[at].into(),
            Self::Wide(cells) => cells[at],
        }
    }

    fn clear(&mut self, at: usize) {
        match self {
            Self::Narrow(cells) => cells[at] = 0,
            Self::Wide(cells) => cells[at] = 0,
        }
    }

    fn raise(&mut self, at: usize, step: u32, room: &mut Room) -> Result<(), Full> {
        match self {
            Self::Narrow(cells) => match u16::try_from(step) {
                Ok(step) => cells[at] = cells[at].max(step),
                Err(_) => {
                    room.take(WIDE - NARROW)?;
                    let mut wide: Box<[u32]> = cells.iter().map(|&cell| cell.into()).collect();
                    wide[at] = step;
                    *self = Self::Wide(wide);
                }
            },
            Self::Wide(cells) => cells[at] = cells[at].max(step),
        }
        Ok(())
    }
}

/// For each unit of a block: steps of several chassis added up, and of how many.
pub(crate) type BlockSums = [(u64, u32); BLOCK as usize];

/// The draws of one chassis in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// By the first unit's number, divided by the block's size.
    blocks: Vec<(i64, Block)>,
    /// The block that was used last: readings come in runs.
    recent: usize,
}

impl Cells {
    /// Sets a unit's cell to `step`, unless it is higher already.
    pub(crate) fn raise(&mut self, unit: i64, step: u32, room: &mut Room) -> Result<(), Full> {
        let (key, at) = (unit.div_euclid(BLOCK), unit.rem_euclid(BLOCK) as usize);
        if self.blocks.get(self.recent).is_none_or(|block| block.0 != key) {
            self.recent = match self.blocks.binary_search_by_key(&key, |block| block.0) {
                Ok(index) => index,
                Err(index) => {
                    room.take(NARROW)?;
                    let empty = Block::Narrow(vec![0; BLOCK as usize].into());
                    self.blocks.insert(index, (key, empty));
                    index
                }
            };
        }
        self.blocks[self.recent].1.raise(at, step, room)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn clear(&mut self, room: &mut Room) {
        room.0 += self.blocks.iter().map(|(_, block)| block.bytes()).sum::<usize>();
        *self = Self::default();
    }

    /// The units that were read, with their steps, in time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, u32)> {
        self.blocks.iter().flat_map(|(key, block)| {
            let cells = (0..BLOCK).map(move |at| (key * BLOCK + at, block.get(at as usize)));
            cells.filter(|&(_, step)| step != 0)
        })
    }

    /// The numbers of the blocks that hold anything.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = i64> {
        self.blocks.iter().map(|(key, _)| *key)
    }

    /// Adds the steps of a block's units to `sums`, with how many were read.
    pub(crate) fn add_block(&self, key: i64, sums: &mut BlockSums) {
        let Ok(index) = self.blocks.binary_search_by_key(&key, |block| block.0) else { return };
        let block = &self.blocks[index].1;
        for (at, (sum, read)) in sums.iter_mut().enumerate() {
            let step = block.get(at);
            *sum += u64::from(step);
            *read += u32::from(step != 0);
        }
    }

    /// Takes out what repeats the unit just before, where `units` or more in a row are the same; the first of
    /// them stays. Gives how many were taken out.
    pub(crate) fn drop_stuck(&mut self, units: u64) -> u64 {
        let mut stuck = vec![];
        let (mut run, mut last) = (0, None);
        for (unit, step) in self.iter() {
            run = if last == Some((unit - 1, step)) { run + 1 } else { 1 };
            last = Some((unit, step));
            if run == units.max(2) {
                stuck.extend(unit - run as i64 + 2..=unit);
            } else if run > units.max(2) {
                stuck.push(unit);
            }
        }

        for unit in &stuck {
            let key = unit.div_euclid(BLOCK);
            if let Ok(index) = self.blocks.binary_search_by_key(&key, |block| block.0) {
                self.blocks[index].1.clear(unit.rem_euclid(BLOCK) as usize);
            }
        }

        stuck.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cells: &[(i64, u32)]) -> Cells {
        let mut all = Cells::default();
        for &(unit, step) in cells {
            all.raise(unit, step, &mut Room(usize::MAX)).unwrap();
        }
        all
    }

    #[test]
    fn the_highest_draw_of_a_unit_stays_and_units_are_in_order() {
        let cells = of(&[(5000, 3), (-1, 7), (5000, 2), (0, 1), (5000, 9), (0, 70_000), (1, 65_535)]);
        let found: Vec<_> = cells.iter().collect();
        assert_eq!(found, [(-1, 7), (0, 70_000), (1, 65_535), (5000, 9)]);
    }

    #[test]
    fn room_is_taken_by_the_block_and_given_back() {
        let (mut cells, mut room) = (Cells::default(), Room(WIDE + 10));
        cells.raise(0, 1, &mut room).unwrap();
        cells.raise(4095, 1, &mut room).unwrap();
        assert_eq!(room.0, NARROW + 10);
        cells.raise(0, 70_000, &mut room).unwrap();
        assert_eq!(room.0, 10);
        assert!(cells.raise(4096, 1, &mut room).is_err());
        assert_eq!(cells.iter().collect::<Vec<_>>(), [(0, 70_000), (4095, 1)]);
        cells.clear(&mut room);
        assert!(cells.is_empty() && room.0 == WIDE + 10);
    }

    #[test]
    fn of_a_stuck_run_the_first_stays() {
        let mut cells = of(&[]);
        assert_eq!(cells.drop_stuck(3), 0);
        // Two are no run of three, a gap ends one, and one goes on over a block's end.
        let run = (4090..4100).map(|unit| (unit, 8));
        let all: Vec<_> = [(0, 5), (1, 5), (3, 5), (4, 6)].into_iter().chain(run).collect();
        let mut cells = of(&all);
        assert_eq!(cells.drop_stuck(3), 9);
        let left: Vec<_> = cells.iter().collect();
        assert_eq!(left, [(0, 5), (1, 5), (3, 5), (4, 6), (4090, 8)]);
    }
}
