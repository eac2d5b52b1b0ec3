// What lies between two attentions of a decoder, in one resident kernel: the output projection, the gated MLP and the
// next layer's q, k and v, with the sums and norms around them.
//
// The weights are one stream. Warps of their own bring them through a ring in shared memory and run ahead of the
// arithmetic, also into the next product, whose input does not exist yet: while the grid waits for itself between two
// products, the memory goes on reading. Only x waits for the grid.
//
// Of a product each thread block takes some outputs (split 1), or each cluster of four takes them and every block of
// it a quarter of the inputs (split 4); then the quarters go to the block that owns an output, through the cluster's
// shared memory. Within a block four warps multiply a quarter of the columns each. Parts are added in their order, and
// none of it depends on the number of tokens: every run, in any company, gives the same bits.
//
// Given by the compiler's options, all known when a model is loaded:
//   GRID thread blocks, a multiple of 4 · ROWS of x: 8, 16 or 32 · STAGES of the weights' ring · CHUNKS of x's ring
//   SHARED_BYTES of memory that a block is given
//   HIDDEN, ATTENDED (heads x dim), INNER, QKV: widths · SPLIT_OUT, SPLIT_UP, SPLIT_DOWN, SPLIT_QKV: 1 or 4

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

constexpr int CLUSTER = 4;
constexpr int MULTIPLIERS = 4, LOADERS = 4, FETCHERS = 2, NORMALISERS = 2;  // warps, in this order
constexpr int THREADS = (MULTIPLIERS + LOADERS + FETCHERS + NORMALISERS) * 32;
constexpr int TILE = 16, BLOCK = 64, DEPTH = 4;  // a stage: 16 outputs x 4 blocks of 64 inputs
constexpr int LINE = BLOCK * 2;                  // bytes of a block in one row; swizzled by eights of rows
constexpr int STAGE_BYTES = TILE * DEPTH * LINE, CHUNK_BYTES = ROWS * DEPTH * LINE;
constexpr int EIGHTS = ROWS / 8;                 // tensor-core tiles of 8 tokens
constexpr int MOST_TILES = EIGHTS == 4 ? 6 : EIGHTS == 2 ? 12 : 16; // that one pass over the inputs has accumulators for
constexpr int SPREAD = TILE + 4;                 // floats between tokens of a tile's sums: no bank is asked twice
constexpr int SUM_FLOATS = ROWS * SPREAD;
constexpr u64 PATIENCE_NS = 20000000000ull;      // a grid that has not met by then never will

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int max_of(int a, int b) { return a > b ? a : b; }

// One product. PAIRED: a tile is eight gates and their eight ups, and OUTPUTS counts pairs.
template <int OUTPUTS, int INPUTS, int SPLIT, bool PAIRED>
struct Product {
    static constexpr bool paired = PAIRED;
    static constexpr int inputs = INPUTS, split = SPLIT, width = PAIRED ? TILE / 2 : TILE;
    static constexpr int tiles = OUTPUTS / width, blocks = INPUTS / BLOCK;
    static constexpr int share = ceil_div(tiles, GRID / SPLIT);
    static constexpr int passes = ceil_div(share, MOST_TILES), taken = ceil_div(share, passes);
    static_assert(OUTPUTS % width == 0 && INPUTS % BLOCK == 0 && (SPLIT == 1 || SPLIT == CLUSTER));

    // The first tile of this block, how many there are, and its range of input blocks.
    static __device__ int first(int block) { return block / SPLIT * share; }
    static __device__ int count(int block) { return max(0, min(share, tiles - first(block))); }
    static __device__ int begin(int block) { return SPLIT == 1 ? 0 : blocks * (block % CLUSTER) / CLUSTER; }
    static __device__ int end(int block) { return SPLIT == 1 ? blocks : blocks * (block % CLUSTER + 1) / CLUSTER; }
    // The row of the weight that is row `row` of a tile.
    static __device__ int source(int tile, int row) {
        return PAIRED ? tile * width + row % width + (row < width ? 0 : OUTPUTS) : tile * width + row;
    }
};

using Out = Product<HIDDEN, ATTENDED, SPLIT_OUT, false>;
using Up = Product<INNER, HIDDEN, SPLIT_UP, true>;
using Down = Product<HIDDEN, INNER, SPLIT_DOWN, false>;
using Qkv = Product<QKV, HIDDEN, SPLIT_QKV, false>;
static_assert(SPLIT_OUT == SPLIT_DOWN, "whoever owns a column of the stream owns it behind both products");

constexpr int ROUND = 4;  // tiles whose sums the warps exchange at a time
constexpr int EXCHANGED = max_of(max_of(Out::taken, Up::taken), max_of(Down::taken, Qkv::taken));
template <class P>
constexpr int parcel() { return P::split == 1 ? 0 : ceil_div(P::taken, ROUND); }
constexpr int PARCELS = max_of(max_of(parcel<Out>(), parcel<Up>()), max_of(parcel<Down>(), parcel<Qkv>()));

struct Shared {
    // Stages and chunks first: they are swizzled by their address.
    unsigned char stages[STAGES][STAGE_BYTES];
    unsigned char chunks[CHUNKS][CHUNK_BYTES];
    float sums[MULTIPLIERS][EXCHANGED < ROUND ? EXCHANGED : ROUND][SUM_FLOATS];
    float parcels[CLUSTER][PARCELS > 0 ? PARCELS : 1][SUM_FLOATS];
    float squares[MULTIPLIERS][ROWS], scales[2][ROWS];
    u64 stage_full[STAGES], stage_free[STAGES], chunk_full[CHUNKS], chunk_free[CHUNKS];
    u64 parcels_full, parcels_free, scales_full[2];
};

static_assert(sizeof(Shared) + 1024 <= SHARED_BYTES, "a block is given what it needs, and room to align it");

// One layer's vectors, and what all layers write to in turn.
struct Layer {
    const bf16 *out_bias, *up_bias, *down_bias, *qkv_bias;  // null where there is none
    const bf16 *norm, *next_norm;
    bf16 *total, *scaled, *inner, *qkv;
    float* squares;  // [ROWS, GRID]
};

// ---- memory and barriers

__device__ u32 place_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ int lane_id() { return threadIdx.x % 32; }
__device__ int warp_id() { return threadIdx.x / 32; }
__device__ u32 swizzled(int row, int piece) { return row * LINE + ((piece ^ (row & 7)) << 4); }

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

__device__ void make_barrier(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place_of(barrier)), "r"(count) : "memory");
}

__device__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place_of(barrier)) : "memory");
}

// Arrives when all copies that this thread has asked for are there.
__device__ void arrive_with_copies(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(place_of(barrier)) : "memory");
}

__device__ void arrive_in(u64* barrier, u32 rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                 ::"r"(place_in(place_of(barrier), rank)) : "memory");
}

__device__ void wait_for(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(place_of(barrier)), "r"(parity) : "memory");
}

__device__ void wait_for_cluster(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(place_of(barrier)), "r"(parity) : "memory");
}

// Stages or chunks in turn: `index` is the one that is next, `round` its parity.
template <int COUNT>
struct Turn {
    int index = 0;
    u32 round = 0;
    __device__ void next() {
        if (++index == COUNT) index = 0, round ^= 1;
    }
};

__device__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ void wait_for_grid(const int* arrivals) {  // called by a whole warp
    if (lane_id() == 0) {
        u64 since = 0;
        for (u32 tries = 1;; ++tries) {
            int met;
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(met) : "l"(arrivals) : "memory");
            if (met >= GRID) break;
            if (tries % 4096 == 0) {
                if (since == 0) since = nanoseconds();
                if (nanoseconds() - since > PATIENCE_NS) asm volatile("trap;");
            }
        }
    }
    __syncwarp();
}

__device__ void multipliers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// What the multipliers of this block have written is for the whole grid.
__device__ void publish(int* arrivals) {
    multipliers_meet();
    if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrivals) : "memory");
    }
}

// ---- arithmetic

__device__ u32 narrowed(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ uint2 narrowed(float4 x) { return make_uint2(narrowed(x.x, x.y), narrowed(x.z, x.w)); }

__device__ float4 widened(uint2 x) {
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                       __uint_as_float(x.y & 0xffff0000u));
}

__device__ float4 rounded(float4 x) { return widened(narrowed(x)); }
__device__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ float silu(float x) { return x / (1.0f + __expf(-x)); }
__device__ float4 four_at(const bf16* p) { return widened(*(const uint2*)p); }
__device__ float4 biased(float4 x, const bf16* bias, int output) { return bias ? x + four_at(bias + output) : x; }

__device__ void load_matrices(u32 (&r)[4], u32 place) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place) : "memory");
}

// c [16 outputs, 8 tokens] += a [16 outputs, 16 inputs] x b [16 inputs, 8 tokens]
__device__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- the warps that bring weights

template <class P>
__device__ void bring_weights(Shared& shared, Turn<STAGES>& turn, const bf16* weight, u64 policy) {
    const int begin = P::begin(blockIdx.x), end = P::end(blockIdx.x), all = P::count(blockIdx.x);
    const int loader = warp_id() - MULTIPLIERS, at = lane_id() / 8, piece = lane_id() % 8;
    for (int pass = 0; pass < P::passes; ++pass) {
        const int tile = P::first(blockIdx.x) + pass * P::taken, count = min(P::taken, all - pass * P::taken);
        if (count <= 0) break;
        for (int block = begin; block < end; block += DEPTH)
            for (int t = 0; t < count; ++t) {
                wait_for(&shared.stage_free[turn.index], turn.round ^ 1);
                const u32 stage = place_of(shared.stages[turn.index]) + at * (TILE * LINE);
                if (block + at < end)
#pragma unroll
                    for (int i = 0; i < TILE / LOADERS; ++i) {
                        const int row = loader + i * LOADERS;
                        const bf16* from = weight + (long long)P::source(tile + t, row) * P::inputs +
                                           (block + at) * BLOCK + piece * 8;
                        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                                     ::"r"(stage + swizzled(row, piece)), "l"(from), "l"(policy) : "memory");
                    }
                arrive_with_copies(&shared.stage_full[turn.index]);
                turn.next();
            }
    }
}

// ---- the warps that fetch x

template <class P>
__device__ void fetch_chunks(Shared& shared, Turn<CHUNKS>& turn, const bf16* x, int tokens) {
    const int begin = P::begin(blockIdx.x), end = P::end(blockIdx.x), all = P::count(blockIdx.x);
    const int fetcher = warp_id() - MULTIPLIERS - LOADERS, at = lane_id() / 8, piece = lane_id() % 8;
    for (int pass = 0; pass < P::passes && all > pass * P::taken; ++pass)
        for (int block = begin; block < end; block += DEPTH) {
            wait_for(&shared.chunk_free[turn.index], turn.round ^ 1);
            const u32 chunk = place_of(shared.chunks[turn.index]) + at * (ROWS * LINE);
            if (block + at < end)
#pragma unroll 4
                for (int row = fetcher; row < tokens; row += FETCHERS) {
                    const bf16* from = x + (long long)row * P::inputs + (block + at) * BLOCK + piece * 8;
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                                 ::"r"(chunk + swizzled(row, piece)), "l"(from) : "memory");
                }
            arrive_with_copies(&shared.chunk_full[turn.index]);
            turn.next();
        }
}

// ---- the warps that find 1 / rms of each token, from the blocks' sums of squares

__device__ void find_scales(Shared& shared, int which, const float* squares, float eps, int tokens) {
    constexpr int EACH = ceil_div(ROWS, NORMALISERS);
    const int first = (warp_id() - MULTIPLIERS - LOADERS - FETCHERS) * EACH;
    float sums[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        sums[i] = 0.0f;
        for (int from = lane_id() * 4; from < GRID && first + i < tokens; from += 128) {
            const float4 four = __ldcg((const float4*)(squares + (first + i) * GRID + from));
            sums[i] += four.x + four.y + four.z + four.w;
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        for (int other = 16; other > 0; other /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], other);
        if (lane_id() == 0 && first + i < tokens) shared.scales[which][first + i] = 1.0f / sqrtf(sums[i] / HIDDEN + eps);
    }
    if (lane_id() == 0) arrive(&shared.scales_full[which]);
}

// ---- the warps that multiply

struct Rings {
    Turn<STAGES> stage;
    Turn<CHUNKS> chunk;
    u32 parcels = 0;
};

template <int TILES>
struct Sums {
    float of[TILES][EIGHTS][4];
};

// This warp's quarter of the columns: warp w takes blocks w, w + 4, ... of the range.
template <class P>
__device__ void multiply(Shared& shared, Rings& rings, int count, Sums<P::taken>& sums) {
    const int warp = warp_id(), lane = lane_id(), end = P::end(blockIdx.x);
#pragma unroll
    for (int t = 0; t < P::taken; ++t)
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums.of[t][e][i] = 0.0f;
    for (int block = P::begin(blockIdx.x); block < end; block += DEPTH) {
        const bool mine = block + warp < end;
        Turn<CHUNKS>& chunk = rings.chunk;
        wait_for(&shared.chunk_full[chunk.index], chunk.round);
        u32 x[EIGHTS][2][4];
        const u32 from = place_of(shared.chunks[chunk.index]) + warp * (ROWS * LINE);
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int half = 0; half < 2; ++half) load_matrices(x[e][half], from + swizzled(e * 8 + lane % 8, half * 4 + lane / 8));
        __syncwarp();
        if (lane == 0) arrive(&shared.chunk_free[chunk.index]);
        chunk.next();
#pragma unroll
        for (int t = 0; t < P::taken; ++t) {
            if (t >= count) continue;
            Turn<STAGES>& stage = rings.stage;
            wait_for(&shared.stage_full[stage.index], stage.round);
            const u32 tile = place_of(shared.stages[stage.index]) + warp * (TILE * LINE);
            u32 w[4][4];
#pragma unroll
            for (int k = 0; k < 4; ++k) load_matrices(w[k], tile + swizzled(lane % 16, 2 * k + lane / 16));
            __syncwarp();
            if (lane == 0) arrive(&shared.stage_free[stage.index]);
            stage.next();
            if (mine)
#pragma unroll
                for (int k = 0; k < 4; ++k)
#pragma unroll
                    for (int e = 0; e < EIGHTS; ++e)
                        multiply_add(sums.of[t][e], w[k], x[e][k / 2][k % 2 * 2], x[e][k / 2][k % 2 * 2 + 1]);
        }
    }
}

// Four neighbouring outputs of one token among a tile's sums: item i of this lane.
struct Item {
    int token, place;
    __device__ Item(int i) : token(lane_id() / 4 + 8 * i), place(lane_id() % 4 * 4) {}
    __device__ int spot() const { return token * SPREAD + place; }
};

// Ends a tile of which four parts lie `stride` floats apart. For four outputs of a token at a time calls
// finish(i, asked, token, output, sums), or finish(i, asked, token, output, gates, ups) for pairs, where asked =
// ask(token, output) was called for all of them before; i counts this lane's tokens, which are lane / 4 + 8 i.
template <class P, class Ask, class Finish>
__device__ void finish_tile(int tile, int tokens, const float* parts, int stride, Ask& ask, Finish& finish) {
    uint2 asked[EIGHTS];
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) {
        const Item item(i);
        if (item.token < tokens) asked[i] = ask(item.token, tile * P::width + item.place);
    }
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) {
        const Item item(i);
        if (item.token >= tokens || item.place >= P::width) continue;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), second = sum;
#pragma unroll
        for (int p = 0; p < 4; ++p) sum = sum + *(const float4*)(parts + p * stride + item.spot());
        if constexpr (P::paired) {
#pragma unroll
            for (int p = 0; p < 4; ++p) second = second + *(const float4*)(parts + p * stride + item.spot() + P::width);
            finish(i, asked[i], item.token, tile * P::width + item.place, sum, second);
        } else {
            finish(i, asked[i], item.token, tile * P::width + item.place, sum);
        }
    }
}

struct Nothing {
    __device__ uint2 operator()(int, int) const { return make_uint2(0, 0); }
};

template <class P, class Ask, class Finish>
__device__ void for_each_sum(Shared& shared, Rings& rings, int tokens, Ask ask, Finish finish) {
    const int warp = warp_id(), lane = lane_id(), all = P::count(blockIdx.x), rank = rank_in_cluster();
    constexpr int BETWEEN_WARPS = sizeof(shared.sums[0]) / 4, BETWEEN_BLOCKS = sizeof(shared.parcels[0]) / 4;
    for (int pass = 0; pass < P::passes; ++pass) {
        const int tile = P::first(blockIdx.x) + pass * P::taken, count = min(P::taken, all - pass * P::taken);
        // A cluster without outputs exchanges nothing; within one, all blocks have the same.
        if (count <= 0) return;
        Sums<P::taken> sums;
        multiply<P>(shared, rings, count, sums);
        if (P::split > 1) wait_for_cluster(&shared.parcels_free, rings.parcels ^ 1);
#pragma unroll
        for (int round = 0; round < ceil_div(P::taken, ROUND); ++round) {
            if (round > 0) multipliers_meet();
#pragma unroll
            for (int t = 0; t < ROUND; ++t)
                if (round * ROUND + t < P::taken)
#pragma unroll
                    for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            shared.sums[warp][t][(e * 8 + lane % 4 * 2 + i % 2) * SPREAD + lane / 4 + i / 2 * 8] =
                                sums.of[round * ROUND + t < P::taken ? round * ROUND + t : 0][e][i];
            multipliers_meet();
            // Warp w ends the round's tile w, or sends it to the block of the cluster that does.
            const int t = round * ROUND + warp;
            if (t >= count) continue;
            const float* parts = shared.sums[0][warp];
            if constexpr (P::split == 1) {
                finish_tile<P>(tile + t, tokens, parts, BETWEEN_WARPS, ask, finish);
            } else {
                const u32 there = place_in(place_of(shared.parcels[rank][round]), warp);
#pragma unroll
                for (int i = 0; i < EIGHTS; ++i) {
                    const Item item(i);
                    if (item.token >= tokens) continue;
                    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                    for (int p = 0; p < 4; ++p) sum = sum + *(const float4*)(parts + p * BETWEEN_WARPS + item.spot());
                    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there + item.spot() * 4),
                                 "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w) : "memory");
                }
            }
        }
        if constexpr (P::split > 1) {
            __syncwarp();
            if (lane == 0) arrive_in(&shared.parcels_full, warp);
            wait_for_cluster(&shared.parcels_full, rings.parcels);
            rings.parcels ^= 1;
            for (int slot = warp; slot * ROUND + rank < count; slot += MULTIPLIERS)
                finish_tile<P>(tile + slot * ROUND + rank, tokens, shared.parcels[0][slot], BETWEEN_BLOCKS, ask, finish);
            __syncwarp();
            if (lane < CLUSTER) arrive_in(&shared.parcels_free, lane);
        }
        if (pass + 1 < P::passes) multipliers_meet();
    }
}

// Adds a product to the stream: total = before + product, scaled = total x norm, and this block's sums of squares.
template <class P>
__device__ void into_stream(Shared& shared, Rings& rings, const Layer& layer, const bf16* before, const bf16* bias,
                            const bf16* norm, int tokens) {
    float squares[EIGHTS] = {};
    // The stream so far was written by this very thread, or by an earlier kernel.
    auto past = [&](int token, int output) { return *(const uint2*)(before + (long long)token * HIDDEN + output); };
    for_each_sum<P>(shared, rings, tokens, past, [&](int i, uint2 past, int token, int output, float4 sum) {
        const long long spot = (long long)token * HIDDEN + output;
        const float4 total = rounded(rounded(biased(sum, bias, output)) + widened(past));
        *(uint2*)(layer.total + spot) = narrowed(total);
        *(uint2*)(layer.scaled + spot) = narrowed(total * four_at(norm + output));
        squares[i] += total.x * total.x + total.y * total.y + total.z * total.z + total.w * total.w;
    });
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) {
        float sum = squares[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane_id() % 4 == 0) shared.squares[warp_id()][lane_id() / 4 + 8 * i] = sum;
    }
    multipliers_meet();
    if (warp_id() == 0 && lane_id() < tokens) {
        float sum = 0.0f;
        for (int from = 0; from < MULTIPLIERS; ++from) sum += shared.squares[from][lane_id()];
        layer.squares[lane_id() * GRID + blockIdx.x] = sum;
    }
}

__device__ void gated(Shared& shared, Rings& rings, const Layer& layer, int tokens) {
    for_each_sum<Up>(shared, rings, tokens, Nothing(), [&](int, uint2, int token, int output, float4 gates, float4 ups) {
        wait_for(&shared.scales_full[0], 0);
        const float scale = shared.scales[0][token];
        const float4 gate = rounded(biased(gates * scale, layer.up_bias, output));
        const float4 up = rounded(biased(ups * scale, layer.up_bias, output + INNER));
        const float4 open = rounded(make_float4(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w)));
        *(uint2*)(layer.inner + (long long)token * INNER + output) = narrowed(open * up);
    });
}

__device__ void project(Shared& shared, Rings& rings, const Layer& layer, int tokens) {
    for_each_sum<Qkv>(shared, rings, tokens, Nothing(), [&](int, uint2, int token, int output, float4 sum) {
        wait_for(&shared.scales_full[1], 0);
        const float4 result = biased(sum * shared.scales[1][token], layer.qkv_bias, output);
        *(uint2*)(layer.qkv + (long long)token * QKV + output) = narrowed(result);
    });
}

// ---- the kernel

__device__ void make_barriers(Shared& shared) {
    for (int i = 0; i < STAGES; ++i) {
        make_barrier(&shared.stage_full[i], LOADERS * 32);
        make_barrier(&shared.stage_free[i], MULTIPLIERS);
    }
    for (int i = 0; i < CHUNKS; ++i) {
        make_barrier(&shared.chunk_full[i], FETCHERS * 32);
        make_barrier(&shared.chunk_free[i], MULTIPLIERS);
    }
    make_barrier(&shared.parcels_full, CLUSTER);
    make_barrier(&shared.parcels_free, CLUSTER * MULTIPLIERS);
    for (int i = 0; i < 2; ++i) make_barrier(&shared.scales_full[i], NORMALISERS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Grid GRID, THREADS threads. attended [tokens, ATTENDED] and the stream before the layer, `before` [tokens, HIDDEN], to
// the stream behind it, `total` [tokens, HIDDEN], and the next layer's `qkv` [tokens, QKV], unless that is null. Weights
// [outputs, inputs]; up is gate over up. scaled [tokens, HIDDEN], inner [tokens, INNER], squares float32 [ROWS, GRID] and
// arrivals int32 [4], zero before, are the kernel's own. At most ROWS tokens.
//
// It may be launched while the kernel before still runs, if that is the one which writes `attended` and no more.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
span(const bf16* out, const bf16* up, const bf16* down, const bf16* next, const bf16* attended, const bf16* before,
     const bf16* out_bias, const bf16* up_bias, const bf16* down_bias, const bf16* qkv_bias, const bf16* norm,
     const bf16* next_norm, bf16* total, bf16* scaled, bf16* inner, bf16* qkv, float* squares, int* arrivals, float eps,
     float next_eps, int tokens) {
    extern __shared__ unsigned char memory[];
    Shared& shared = *(Shared*)(((u64)memory + 1023) & ~1023ull);
    const Layer layer = {out_bias, up_bias, down_bias, qkv_bias, norm, next_norm, total, scaled, inner, qkv, squares};
    const bool last = qkv == nullptr;
    const int warp = warp_id();
    if (threadIdx.x == 0) make_barriers(shared);
    // All blocks are on the device once all have come here, so that what waits for them takes no room of theirs.
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    cluster_meets();
    if (warp >= MULTIPLIERS && warp < MULTIPLIERS + LOADERS) {
        // Weights are there before any kernel: they need not wait for the one before, which may still run.
        Turn<STAGES> turn;
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        bring_weights<Out>(shared, turn, out, policy);
        bring_weights<Up>(shared, turn, up, policy);
        bring_weights<Down>(shared, turn, down, policy);
        if (!last) bring_weights<Qkv>(shared, turn, next, policy);
        asm volatile("cp.async.wait_all;" ::: "memory");
    } else if (warp >= MULTIPLIERS + LOADERS && warp < MULTIPLIERS + LOADERS + FETCHERS) {
        Turn<CHUNKS> turn;
        asm volatile("griddepcontrol.wait;" ::: "memory");
        fetch_chunks<Out>(shared, turn, attended, tokens);
        wait_for_grid(arrivals);
        fetch_chunks<Up>(shared, turn, scaled, tokens);
        wait_for_grid(arrivals + 1);
        fetch_chunks<Down>(shared, turn, inner, tokens);
        if (!last) {
            wait_for_grid(arrivals + 2);
            fetch_chunks<Qkv>(shared, turn, scaled, tokens);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    } else if (warp >= MULTIPLIERS + LOADERS + FETCHERS) {
        wait_for_grid(arrivals);
        find_scales(shared, 0, squares, eps, tokens);
        if (!last) {
            wait_for_grid(arrivals + 2);
            find_scales(shared, 1, squares, next_eps, tokens);
        }
    } else {
        Rings rings;
        into_stream<Out>(shared, rings, layer, before, out_bias, norm, tokens);
        publish(arrivals);
        gated(shared, rings, layer, tokens);
        publish(arrivals + 1);
        into_stream<Down>(shared, rings, layer, total, down_bias, next_norm, tokens);
        if (!last) {
            publish(arrivals + 2);
            project(shared, rings, layer, tokens);
        }
    }
    // A block's shared memory is its neighbours' too until all of them are done.
    __syncwarp();
    cluster_meets();
}
