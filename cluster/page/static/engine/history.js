// What the last answers have told, put together: the steps of the last seconds, and counts a second.

const KEPT = 12; // seconds
const COUNTS = ["num_generation_tokens", "num_prompt_tokens", "num_steps"];

export class History {
  constructor() {
    this._engines = new Map(); // by replica
  }

  add(engines) {
    const known = new Map();
    for (const engine of engines) {
      const one = this._engines.get(engine.replica) ?? new EngineHistory();
      one.add(engine);
      known.set(engine.replica, one);
    }
    this._engines = known;
  }

  of(engine) {
    return this._engines.get(engine.replica);
  }

  /** Tokens a second of these engines, now. */
  rate(count, engines) {
    return engines.reduce((sum, engine) => sum + this.of(engine).rate(count), 0);
  }
}

class EngineHistory {
  constructor() {
    this.steps = new Map(); // by number
    this.now = 0; // of the engine's clock, when it was last told
    this._reports = [];
  }

  add(engine) {
    const counts = Object.fromEntries(COUNTS.map((name) => [name, engine.stats[name]]));
    if (this._reports.at(-1)?.made !== engine.made) this._reports.push({ made: engine.made, ...counts });
    this._reports = this._reports.filter((report) => report.made > engine.made - KEPT);
    const { view } = engine;
    if (!view?.steps) return;
    this.now = view.now;
    for (const row of view.steps) {
      const step = Object.fromEntries(view.step_fields.map((name, place) => [name, row[place]]));
      this.steps.set(step.step, step);
    }
    for (const [number, step] of this.steps) {
      if (step.processed < this.now - KEPT) this.steps.delete(number);
    }
  }

  /** A second, over the last second or two. */
  rate(count) {
    const last = this._reports.at(-1);
    const first = this._reports.findLast((report) => report.made <= last.made - 0.9) ?? this._reports[0];
    return last === first ? 0 : Math.max(0, (last[count] - first[count]) / (last.made - first.made));
  }
}
