/**
 * Record numbers by key: open addressing over 32 bits of the key, 14 to 25 bytes an entry with the time of its last use. Records whose
 * keys share these bits are told apart by reading them.
 */
export class KeyIndex {
  /** How many records can be found. */
  size = 0
  /** Record number plus 1 by slot; 0 is an empty slot. */
  private slots = new Uint32Array(1 << 10)
  /** By record number: 32 bits of its key. */
  private tags = new Uint32Array(1 << 9)
  /** By record number: when it was last used, in Unix seconds; 0 where it cannot be found. */
  private times = new Uint32Array(1 << 9)

  add(tag: number, record: number, time: number): void {
    if (4 * (this.size + 1) > 3 * this.slots.length) this.grow()
    if (record >= this.tags.length) {
      const length = Math.max(record + 1, Math.ceil(1.5 * this.tags.length))
      this.tags = lengthened(this.tags, length)
      this.times = lengthened(this.times, length)
    }
    this.tags[record] = tag
    this.times[record] = time
    this.put(tag, record)
    this.size++
  }

  /** Records that may have this key. */
  find(key: Uint8Array): number[] {
    const tag = tagOf(key)
    const mask = this.slots.length - 1
    const found: number[] = []
    for (let at = tag & mask; this.slots[at] !== 0; at = (at + 1) & mask) {
      const record = (this.slots[at] as number) - 1
      if (this.tags[record] === tag) found.push(record)
    }
    return found
  }

  touch(record: number, time: number): void {
    this.times[record] = time
  }

  /** Takes the later times of another index of the same records. */
  keepTimes(other: KeyIndex): void {
    const records = Math.min(this.times.length, other.times.length)
    for (let record = 0; record < records; record++)
      if (this.times[record] !== 0 && (other.times[record] as number) > (this.times[record] as number))
        this.times[record] = other.times[record] as number
  }

  /** Tags and times of the first `records`. */
  arrays(records: number): { tags: Uint32Array; times: Uint32Array } {
    const whole = (array: Uint32Array): Uint32Array =>
      records <= array.length ? array.subarray(0, records) : lengthened(array, records)
    return { tags: whole(this.tags), times: whole(this.times) }
  }

  private put(tag: number, record: number): void {
    const mask = this.slots.length - 1
    let at = tag & mask
    while (this.slots[at] !== 0) at = (at + 1) & mask
    this.slots[at] = record + 1
  }

  private grow(): void {
    const old = this.slots
    this.slots = new Uint32Array(2 * old.length)
    for (const slot of old) if (slot !== 0) this.put(this.tags[slot - 1] as number, slot - 1)
  }
}

/** Keys are hashes, so that any 32 of their bits serve. */
export function tagOf(key: Uint8Array): number {
  return (
    ((key[0] as number) | ((key[1] as number) << 8) | ((key[2] as number) << 16) | ((key[3] as number) << 24)) >>> 0
  )
}

function lengthened(array: Uint32Array, length: number): Uint32Array<ArrayBuffer> {
  const longer = new Uint32Array(length)
  longer.set(array)
  return longer
}
