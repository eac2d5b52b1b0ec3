// A step's attention in one kernel, for few query tokens of a row: q and k normalised where the model does so and turned,
// the new k and v written to the paged cache, and the softmax over all keys of the row.
//
// A cluster of SPLITS blocks works on one row and one head of keys. The keys come in steps of 64: those that the cache
// had before, and at last those of this step's tokens, which are made here. Each block takes a share of the steps; those
// of the cache are asked for before the kernel in front has ended, as nothing of them can still be missing. In the end
// every block sends its parts of a query to the block that joins them, in an order that never changes.
//
// Given by the compiler's options:
//   DIM 64 or 128 · HEADS, KV_HEADS · TALL rows of (tokens x heads that share a key head): 16, 32, 64 or 128
//   SPLITS 1..8 · NORMED 0 or 1 · BLOCK_SIZE slots of a block of the cache · SHARED_BYTES of memory a block is given

typedef unsigned int u32;
typedef unsigned short bf16;
typedef long long i64;

constexpr int FOLD = HEADS / KV_HEADS;
constexpr int HIGH = TALL / 16;                   // warps along the queries, 16 each
constexpr int WIDE = HIGH == 1 ? 4 : 8 / HIGH;    // warps along the keys of a step
constexpr int WARPS = HIGH * WIDE, THREADS = WARPS * 32;
constexpr int STEP = 64, OWN = STEP / WIDE;       // keys of a step, and those of a warp
constexpr int STAGES = TALL == 128 ? 3 : 4;       // steps in memory
constexpr int LINE = DIM * 2, PIECES = DIM / 8;   // bytes of a row, and its pieces of 16 bytes
constexpr int PARTS = SPLITS * WIDE, SHARE = TALL / SPLITS;  // parts of a query, queries that a block joins
constexpr float LOWEST = -1e30f;                  // stands for minus infinity where a difference is taken

static_assert(HEADS % KV_HEADS == 0 && TALL >= FOLD && TALL % SPLITS == 0 && PARTS <= 32);
static_assert(DIM == 64 || DIM == 128);

struct Stage {
    unsigned char k[STEP * LINE], v[STEP * LINE];
};

struct Shared {
    Stage stages[STAGES];
    unsigned char q[TALL * LINE];
    // What all blocks of the cluster send here: sums that are not divided yet, their largest score and their weight.
    float parts[PARTS][SHARE][DIM], tops[PARTS][SHARE], totals[PARTS][SHARE];
    float weights[SHARE][32], whole[SHARE];
    int slots[STAGES][STEP];
};

static_assert(sizeof(Shared) + 128 <= SHARED_BYTES, "a block is given what it needs, and room to align it");

struct Row {
    int begin, count;  // first token, tokens
    int prefix;        // keys in the cache before them; below 0 for padding
    int made, steps;   // steps of the cache, and with those of this step's tokens
};

// ---- memory

__device__ u32 place_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ int lane_id() { return threadIdx.x % 32; }
__device__ int warp_id() { return threadIdx.x / 32; }
__device__ int swizzled(int row, int piece) { return row * LINE + ((piece ^ (row & 7)) << 4); }
__device__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ u32 place_in(u32 place, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
    return there;
}

__device__ void send(u32 place, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place), "f"(x) : "memory");
}

__device__ void send(u32 place, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(x), "f"(y) : "memory");
}

__device__ void cluster_arrives() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ void await_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ void copy_piece(u32 to, const bf16* from, bool there) {  // zeros where there is nothing
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// ---- arithmetic

__device__ u32 narrowed(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ float low_of(u32 x) { return __uint_as_float(x << 16); }
__device__ float high_of(u32 x) { return __uint_as_float(x & 0xffff0000u); }

__device__ void load_matrices(u32 (&r)[4], u32 place) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place) : "memory");
}

__device__ void load_turned_matrices(u32 (&r)[4], u32 place) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place) : "memory");
}

__device__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- a row's keys and queries

__device__ Row row_of(const i64* query_starts, const i64* context_lens, int index) {
    Row row;
    row.begin = (int)query_starts[index];
    row.count = (int)query_starts[index + 1] - row.begin;
    row.prefix = (int)context_lens[index] - row.count;
    row.made = ceil_div(max(row.prefix, 0), STEP);
    row.steps = row.made + ceil_div(row.count, STEP);
    return row;
}

// Where the cache holds a key of a step; -1 where there is none, or this step makes it.
__device__ int slot_of(const i64* table, const Row& row, int number, int key) {
    const int position = number * STEP + key;
    if (position >= row.prefix) return -1;
    return (int)table[position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
}

// Asks for the keys and values in `slots`.
__device__ void ask(Stage& stage, const int (&slots)[STEP], const bf16* keys, const bf16* values, int stride) {
    const int piece = threadIdx.x % PIECES;
#pragma unroll
    for (int key = threadIdx.x / PIECES; key < STEP; key += THREADS / PIECES) {
        const int slot = slots[key], to = swizzled(key, piece);
        const i64 from = (i64)max(slot, 0) * stride + piece * 8;
        copy_piece(place_of(stage.k + to), keys + from, slot >= 0);
        copy_piece(place_of(stage.v + to), values + from, slot >= 0);
    }
}

// Eight pairs of channels of one head, i and i + DIM / 2, normalised and turned.
struct Pairs {
    uint4 first, second;
};

__device__ Pairs turned(const bf16* head, const float* angles, const bf16* norm, float eps, int piece) {
    constexpr int HALF = DIM / 2;
    const uint4 a = *(const uint4*)(head + piece * 8), b = *(const uint4*)(head + HALF + piece * 8);
    const u32 firsts[4] = {a.x, a.y, a.z, a.w}, seconds[4] = {b.x, b.y, b.z, b.w};
    float x[8], y[8], cosines[8], sines[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = low_of(firsts[i]), x[2 * i + 1] = high_of(firsts[i]);
        y[2 * i] = low_of(seconds[i]), y[2 * i + 1] = high_of(seconds[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        *(float4*)(cosines + 4 * i) = *(const float4*)(angles + piece * 8 + 4 * i);
        *(float4*)(sines + 4 * i) = *(const float4*)(angles + HALF + piece * 8 + 4 * i);
    }
    if (NORMED) {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) square += x[i] * x[i] + y[i] * y[i];
#pragma unroll
        for (int other = 1; other < PIECES / 2; other *= 2) square += __shfl_xor_sync(~0u, square, other);
        const float factor = 1.0f / sqrtf(square / DIM + eps);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const u32 low = *(const u32*)(norm + piece * 8 + i), high = *(const u32*)(norm + HALF + piece * 8 + i);
            const u32 p = narrowed(x[i] * factor * low_of(low), x[i + 1] * factor * high_of(low));
            const u32 q = narrowed(y[i] * factor * low_of(high), y[i + 1] * factor * high_of(high));
            x[i] = low_of(p), x[i + 1] = high_of(p), y[i] = low_of(q), y[i + 1] = high_of(q);
        }
    }
    u32 p[4], q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = 2 * i, k = j + 1;
        p[i] = narrowed(x[j] * cosines[j] - y[j] * sines[j], x[k] * cosines[k] - y[k] * sines[k]);
        q[i] = narrowed(y[j] * cosines[j] + x[j] * sines[j], y[k] * cosines[k] + x[k] * sines[k]);
    }
    return {make_uint4(p[0], p[1], p[2], p[3]), make_uint4(q[0], q[1], q[2], q[3])};
}

// The row's queries, turned; rows that there are none for are zeros.
__device__ void make_queries(Shared& shared, const Row& row, const bf16* heads, int stride, const float* angles,
                             const bf16* norm, float eps) {
    constexpr int TEAM = PIECES / 2;
    const int piece = threadIdx.x % TEAM;
    for (int query = threadIdx.x / TEAM; query < TALL; query += THREADS / TEAM) {
        const bool there = query / FOLD < row.count;
        const i64 token = row.begin + (there ? query / FOLD : 0);
        Pairs pairs = turned(heads + token * stride + query % FOLD * DIM, angles + token * DIM, norm, eps, piece);
        if (!there) pairs.first = pairs.second = make_uint4(0, 0, 0, 0);
        *(uint4*)(shared.q + swizzled(query, piece)) = pairs.first;
        *(uint4*)(shared.q + swizzled(query, piece + TEAM)) = pairs.second;
    }
}

// Keys and values of one step that are this step's tokens: into the stage, and into the cache.
__device__ void make_keys(Stage& stage, const Row& row, int number, const bf16* heads, int stride, const float* angles,
                          const bf16* norm, float eps, const i64* slots, bf16* keys, bf16* values, int slot_stride) {
    constexpr int TEAM = PIECES / 2;
    const int piece = threadIdx.x % TEAM, first = (number - row.made) * STEP;
    for (int key = threadIdx.x / TEAM; key < STEP; key += THREADS / TEAM) {
        const bool there = first + key < row.count;
        const i64 token = row.begin + (there ? first + key : 0), slot = there ? slots[token] : -1;
        const bf16 *k = heads + token * stride, *v = k + KV_HEADS * DIM;
        Pairs given = {*(const uint4*)(v + piece * 8), *(const uint4*)(v + DIM / 2 + piece * 8)};
        Pairs pairs = turned(k, angles + token * DIM, norm, eps, piece);
        if (!there) pairs.first = pairs.second = given.first = given.second = make_uint4(0, 0, 0, 0);
        *(uint4*)(stage.k + swizzled(key, piece)) = pairs.first;
        *(uint4*)(stage.k + swizzled(key, piece + TEAM)) = pairs.second;
        *(uint4*)(stage.v + swizzled(key, piece)) = given.first;
        *(uint4*)(stage.v + swizzled(key, piece + TEAM)) = given.second;
        if (slot >= 0) {
            const i64 to = slot * slot_stride + piece * 8;
            *(uint4*)(keys + to) = pairs.first;
            *(uint4*)(keys + to + DIM / 2) = pairs.second;
            *(uint4*)(values + to) = given.first;
            *(uint4*)(values + to + DIM / 2) = given.second;
        }
    }
}

// ---- one step of keys

// What a warp has of its 16 queries: sums of values, and for the thread's two rows the largest score and the weight.
struct Running {
    float acc[DIM / 8][4] = {}, top[2] = {LOWEST, LOWEST}, total[2] = {0.0f, 0.0f};
};

// tokens: which one of the row each of the thread's two queries is of. -1 sees no key of this step's.
__device__ void absorb(Running& run, const Stage& stage, const u32 (&queries)[DIM / 16][4], const Row& row, int number,
                       const int (&tokens)[2], float scale) {
    const int lane = lane_id(), wide = warp_id() / HIGH;
    float scores[OWN / 8][4] = {};
#pragma unroll
    for (int i = 0; i < DIM / 16; ++i) {
#pragma unroll
        for (int n = 0; n < OWN / 16; ++n) {
            u32 k[4];
            const int line = wide * OWN + n * 16 + lane % 8 + lane / 16 * 8;
            load_matrices(k, place_of(stage.k + swizzled(line, 2 * i + lane / 8 % 2)));
            multiply_add(scores[2 * n], queries[i], k[0], k[1]);
            multiply_add(scores[2 * n + 1], queries[i], k[2], k[3]);
        }
    }
    float best[2] = {run.top[0], run.top[1]};
    const bool all_seen = (number + 1) * STEP <= row.prefix;
#pragma unroll
    for (int n = 0; n < OWN / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int key = wide * OWN + n * 8 + lane % 4 * 2 + j % 2;
            const bool old = number < row.made;
            const bool seen = all_seen || (old ? number * STEP + key < row.prefix
                                               : (number - row.made) * STEP + key <= tokens[j / 2]);
            scores[n][j] = seen ? scores[n][j] * scale : LOWEST;
            best[j / 2] = fmaxf(best[j / 2], scores[n][j]);
        }
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 1));
        best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 2));
        shrink[r] = exp2f(run.top[r] - best[r]);
        run.top[r] = best[r], run.total[r] *= shrink[r];
    }
#pragma unroll
    for (int n = 0; n < OWN / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            scores[n][j] = scores[n][j] > LOWEST ? exp2f(scores[n][j] - run.top[j / 2]) : 0.0f;
            run.total[j / 2] += scores[n][j];
        }
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; ++d) {
        run.acc[d][0] *= shrink[0], run.acc[d][1] *= shrink[0];
        run.acc[d][2] *= shrink[1], run.acc[d][3] *= shrink[1];
    }
#pragma unroll
    for (int n = 0; n < OWN / 16; ++n) {
        const float(&a)[4] = scores[2 * n], (&b)[4] = scores[2 * n + 1];
        const u32 weights[4] = {narrowed(a[0], a[1]), narrowed(a[2], a[3]), narrowed(b[0], b[1]), narrowed(b[2], b[3])};
#pragma unroll
        for (int d = 0; d < DIM / 16; ++d) {
            u32 v[4];
            load_turned_matrices(v, place_of(stage.v + swizzled(wide * OWN + n * 16 + lane % 16, 2 * d + lane / 16)));
            multiply_add(run.acc[2 * d], weights, v[0], v[1]);
            multiply_add(run.acc[2 * d + 1], weights, v[2], v[3]);
        }
    }
}

// ---- the end

// Each query's part to the block that joins it. `above`: the first of the thread's two queries.
__device__ void send_parts(Shared& shared, Running& run, int rank, int above, int queries) {
    const int lane = lane_id(), part = rank * WIDE + warp_id() / HIGH;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        run.total[r] += __shfl_xor_sync(~0u, run.total[r], 1);
        run.total[r] += __shfl_xor_sync(~0u, run.total[r], 2);
        const int query = above + 8 * r, owner = query / SHARE, line = query % SHARE;
        if (query >= queries) continue;
#pragma unroll
        for (int d = 0; d < DIM / 8; ++d)
            send(place_in(place_of(&shared.parts[part][line][d * 8 + lane % 4 * 2]), owner), run.acc[d][2 * r],
                 run.acc[d][2 * r + 1]);
        if (lane % 4 == 0) {
            send(place_in(place_of(&shared.tops[part][line]), owner), run.top[r]);
            send(place_in(place_of(&shared.totals[part][line]), owner), run.total[r]);
        }
    }
}

// The queries of this block, from the parts that all blocks have sent. `out` [queries / FOLD, HEADS, DIM].
__device__ void join_parts(Shared& shared, int rank, int queries, bf16* out) {
    const int lane = lane_id(), first = rank * SHARE, count = min(SHARE, queries - first);
    for (int line = warp_id(); line < count; line += WARPS) {
        const float peak = lane < PARTS ? shared.tops[lane][line] : LOWEST;
        float sum = lane < PARTS ? shared.totals[lane][line] : 0.0f, best = peak;
        for (int other = 16; other > 0; other /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, other));
        const float weight = exp2f(peak - best);
        sum *= weight;
        for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        shared.weights[line][lane] = weight;
        if (lane == 0) shared.whole[line] = sum > 0.0f ? 1.0f / sum : 0.0f;
    }
    __syncthreads();
    for (int item = threadIdx.x; item < count * DIM / 2; item += THREADS) {
        const int line = item / (DIM / 2), channel = item % (DIM / 2) * 2, query = first + line;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const float2 x = *(const float2*)&shared.parts[part][line][channel];
            sum.x += shared.weights[line][part] * x.x, sum.y += shared.weights[line][part] * x.y;
        }
        const float factor = shared.whole[line];
        *(u32*)(out + ((i64)(query / FOLD) * HEADS + query % FOLD) * DIM + channel) =
            narrowed(sum.x * factor, sum.y * factor);
    }
}

// Grid: SPLITS blocks for each of KV_HEADS heads of each row.
extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS)
attend(const bf16* qkv, const float* angles, const bf16* q_norm, const bf16* k_norm, bf16* keys, bf16* values, bf16* out,
       const i64* slots, const i64* query_starts, const i64* context_lens, const i64* tables, int qkv_stride,
       int slot_stride, int table_stride, int tokens, int rows, float eps, float scale) {
    extern __shared__ unsigned char memory[];
    Shared& shared = *(Shared*)(memory + (-place_of(memory) & 127));
    cluster_arrives();  // so that later all are known to be there
    const int rank = rank_in_cluster(), unit = blockIdx.x / SPLITS, head = unit % KV_HEADS, index = unit / KV_HEADS;
    const Row row = row_of(query_starts, context_lens, index);
    const i64* table = tables + (i64)index * table_stride;
    keys += head * DIM, values += head * DIM, out += head * FOLD * DIM;
    // The last block has the fewest steps of the cache, as it makes the new ones.
    const int first = row.steps - row.steps * (SPLITS - rank) / SPLITS;
    const int last = row.steps - row.steps * (SPLITS - rank - 1) / SPLITS, asked = min(last, row.made);
    for (int i = threadIdx.x; i < STAGES * STEP; i += THREADS)
        shared.slots[i / STEP][i % STEP] = slot_of(table, row, first + i / STEP, i % STEP);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (first + i < asked) ask(shared.stages[i], shared.slots[i], keys, values, slot_stride);
        close_copies();
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    const bf16 *queries_from = qkv + head * FOLD * DIM, *keys_from = qkv + (HEADS + head) * DIM;
    const auto make = [&](int number) {
        make_keys(shared.stages[(number - first) % STAGES], row, number, keys_from, qkv_stride, angles, k_norm, eps, slots,
                  keys, values, slot_stride);
    };
    for (int number = max(first, row.made); number < min(last, first + STAGES); ++number) make(number);
    make_queries(shared, row, queries_from, qkv_stride, angles, q_norm, eps);
    __syncthreads();
    const int lane = lane_id(), high = warp_id() % HIGH, above = high * 16 + lane / 4;
    const bool padding = row.prefix < 0;  // it sees not even itself
    const int queries = row.count * FOLD, mine[2] = {padding ? -1 : above / FOLD, padding ? -1 : (above + 8) / FOLD};
    u32 loaded[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; ++i)
        load_matrices(loaded[i], place_of(shared.q + swizzled(high * 16 + lane % 16, 2 * i + lane / 16)));

    Running run;
    for (int number = first; number < last; ++number) {
        if (number >= max(row.made, first + STAGES)) make(number);
        // Looked up long before it is asked for: the copies need not wait for the table.
        const bool looks = threadIdx.x < STEP && number + STAGES < last;
        const int found = looks ? slot_of(table, row, number + STAGES, threadIdx.x) : -1;
        await_copies<STAGES - 2>();
        __syncthreads();
        const int next = number + STAGES - 1, turn = (next - first) % STAGES;
        if (next < asked) ask(shared.stages[turn], shared.slots[turn], keys, values, slot_stride);
        close_copies();
        absorb(run, shared.stages[(number - first) % STAGES], loaded, row, number, mine, scale);
        if (looks) shared.slots[(number - first) % STAGES][threadIdx.x] = found;
    }
    await_cluster();
    send_parts(shared, run, rank, above, queries);
    cluster_arrives();
    if (index == rows - 1) {
        // Tokens of no row get zeros, not whatever the memory held.
        const int bare = row.begin + row.count;
        for (int i = rank * THREADS + threadIdx.x; i < (tokens - bare) * FOLD * DIM; i += SPLITS * THREADS)
            out[(i64)(bare + i / (FOLD * DIM)) * HEADS * DIM + i % (FOLD * DIM)] = 0;
    }
    await_cluster();
    join_parts(shared, rank, queries, out + (i64)row.begin * HEADS * DIM);
}
