// Fills PERCENT (argument 2) of the old generation's BYTES (argument 1), and buffers outside of it with a tenth of
// the budget.
const v8 = require("node:v8");

const budget = Number(process.env.OOMPROOF_BUDGET_BYTES);
const limit = Number(process.argv[2]);
const share = Number(process.argv[3]) / 100;
const held = [];
for (let size = 0; size < budget * 0.1; size += 1 << 20) {
  held.push(Buffer.alloc(1 << 20, 1));
}
let newest = null;
let used = 0;
while (used < limit * share) {
  for (let i = 0; i < 10000; i++) {
    newest = { before: newest, name: `object ${i}`, size: i + 0.5 };
  }
  used = v8.getHeapStatistics().used_heap_size;
}
console.log(`filled: heap ${used} of ${limit}, buffers ${held.length} MiB, ${newest.name}`);
