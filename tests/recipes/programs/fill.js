// Fills the old generation to 90 % of what V8 says it may have (or to the percentage in argument 1), and buffers
// outside of it with a tenth of the budget.
const v8 = require("node:v8");

const budget = Number(process.env.OOMPROOF_BUDGET_BYTES);
const held = [];
for (let size = 0; size < budget * 0.1; size += 1 << 20) {
  held.push(Buffer.alloc(1 << 20, 1));
}
// The limit counts the young generation, too: three semi-spaces of 16 MiB.
const limit = v8.getHeapStatistics().heap_size_limit - 3 * (16 << 20);
let newest = null;
let used = 0;
const share = Number(process.argv[2] ?? 90) / 100;
while (used < limit * share) {
  for (let i = 0; i < 10000; i++) {
    newest = { before: newest, name: `object ${i}`, size: i + 0.5 };
  }
  used = v8.getHeapStatistics().used_heap_size;
}
console.log(`filled: heap ${used} of ${limit}, buffers ${held.length} MiB, ${newest.name}`);
