/* The flat arithmetic of a search by hand: step time and peak memory of every candidate, the smallest time kept.

   The same formulas as dsx/cost (step, memory, pipeline, collectives), from layer costs that are there already,
   in float32. Blocks are keys times choices. Choices are taken in tiles that stay in the L1 cache; what does not
   depend on the key is computed once per tile, the rest for each candidate in a loop without branches that the
   compiler vectorises. Built with -ffast-math, so no infinities: NONE stands for "does not fit". */

#include <float.h>
#include <math.h>
#include <stdint.h>

#define TILE 256
#define NONE FLT_MAX

typedef struct {
    float num_layers, hbm_capacity, hbm_seconds_per_byte;
    float nvs_latency, nvs_seconds_per_byte, net_latency, net_seconds_per_byte;
    float gradient_per_weight_byte, optimizer_per_weight_byte, traffic_per_weight_byte, overhead_bytes;
} Terms;

/* Layer costs: [num_keys] each, [num_groups, num_keys] for those of weight groups. */
typedef struct {
    int64_t num_keys, num_groups;
    const float *forward_s, *backward_s, *replicated_gradient_s, *stash_bytes, *boundary_bytes;
    const float *weight_bytes, *group_size, *group_share;
} Table;

/* Block b: keys[key_start[b] .. key_start[b + 1]] times the choices from choice_start[b] to choice_start[b + 1]. */
typedef struct {
    int64_t count;
    const int64_t *key_start, *choice_start;
    const int32_t *keys, *group;
    const float *pp, *dp, *num_microbatches, *pp_nvs, *dp_nvs;
} Blocks;

/* Per group of choices: the smallest step time, its key, and its choice; and how many candidates fit. */
typedef struct {
    float *time;
    int32_t *key;
    int64_t *choice;
    int64_t feasible;
} Winners;

/* What a tile of choices brings to each candidate, and the best of each choice so far. */
typedef struct {
    float layers[TILE], busy_layers[TILE], layers_in_flight[TILE], send_s[TILE], send_s_per_byte[TILE];
    float dp[TILE], one_over_dp[TILE], dp_nvs[TILE], dp_domains[TILE], nic_s_per_byte[TILE];
    float best_time[TILE];
    int32_t best_key[TILE];
} Tile;

static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

/* floor(a / b) of whole numbers: -ffast-math divides by a reciprocal that may fall just below the whole number. */
static inline float whole_times(float a, float b) { return floorf((a + 0.5f) / b); }

static void fill(Tile *restrict tile, const Blocks *blocks, int64_t start, int length, const Terms *terms)
{
    const float *restrict pp = blocks->pp + start, *restrict dp = blocks->dp + start;
    const float *restrict microbatches = blocks->num_microbatches + start;
    const float *restrict pp_nvs = blocks->pp_nvs + start, *restrict dp_nvs = blocks->dp_nvs + start;
    for (int c = 0; c < length; c++) {
        float layers = whole_times(terms->num_layers, pp[c]);
        float slots = microbatches[c] + pp[c] - 1.0f;
        float slow_links = whole_times(pp[c], pp_nvs[c]) - 1.0f, fast_links = pp[c] - 1.0f - slow_links;
        float sends_per_link = 2.0f * slots / larger(pp[c] - 1.0f, 1.0f);  /* one stage has no links, so no sends */
        tile->layers[c] = layers;
        tile->busy_layers[c] = slots * layers;
        tile->layers_in_flight[c] = layers * smaller(pp[c], microbatches[c]);
        tile->send_s[c] = sends_per_link * (fast_links * terms->nvs_latency + slow_links * terms->net_latency);
        tile->send_s_per_byte[c] =
            sends_per_link * (fast_links * terms->nvs_seconds_per_byte + slow_links * terms->net_seconds_per_byte);
        tile->dp[c] = dp[c];
        tile->one_over_dp[c] = 1.0f / dp[c];
        tile->dp_nvs[c] = dp_nvs[c];
        tile->dp_domains[c] = dp[c] / dp_nvs[c];
        tile->nic_s_per_byte[c] = terms->net_seconds_per_byte / dp_nvs[c];
        tile->best_time[c] = NONE;
        tile->best_key[c] = -1;
    }
}

/* Price one key with a tile of choices; returns how many fit. `groups` is a constant where it is inlined. */
static inline __attribute__((always_inline)) int price(
    Tile *restrict tile, int length, const Table *table, int32_t key, const Terms *terms, int64_t groups)
{
    const float forward = table->forward_s[key], backward = table->backward_s[key];
    const float both = forward + backward, replicated = table->replicated_gradient_s[key];
    const float stash = table->stash_bytes[key], boundary = table->boundary_bytes[key];
    float weights = 0.0f;
    for (int64_t j = 0; j < groups; j++)
        weights += table->weight_bytes[j * table->num_keys + key];
    const float weights_and_gradients = weights * (1.0f + terms->gradient_per_weight_byte);
    const float update_s_per_byte = terms->traffic_per_weight_byte * terms->hbm_seconds_per_byte;
    const float slow = terms->net_seconds_per_byte, fast = terms->nvs_seconds_per_byte;
    int fitting = 0;
    for (int c = 0; c < length; c++) {
        float gather = 0.0f, scatter = 0.0f, sharded = 0.0f;
        for (int64_t j = 0; j < groups; j++) {
            const int64_t at = j * table->num_keys + key;
            const float held = table->weight_bytes[at], members = table->group_size[at], share = table->group_share[at];
            const float size = tile->dp[c] * members, domains = tile->dp_domains[c] * (members / share);
            const float one_over_size = tile->one_over_dp[c] * (1.0f / members);
            const float latency = terms->net_latency * (domains - 1.0f) + terms->nvs_latency * (size - domains);
            const float mixed = larger(tile->nic_s_per_byte[c] * (1.0f / share), fast);
            const float in_domain = tile->dp_nvs[c] * share;
            const float link = in_domain == 1.0f ? slow : size == in_domain ? fast : mixed;
            const float per_byte = (1.0f - one_over_size) * link;
            const float held_at_all = held > 0.0f ? 1.0f : 0.0f;
            gather += held_at_all * latency + per_byte * held;
            scatter += held_at_all * latency + per_byte * (held * terms->gradient_per_weight_byte);
            sharded += one_over_size * held;
        }
        const float layers = tile->layers[c];
        const float behind = larger(gather - forward, 0.0f) + larger(scatter - backward, 0.0f);
        const float reduction = gather + scatter + (layers - 1.0f) * behind;
        const float step = tile->busy_layers[c] * both + tile->send_s[c] + tile->send_s_per_byte[c] * boundary +
                           reduction + layers * (replicated + sharded * update_s_per_byte);
        const float peak = layers * (weights_and_gradients + sharded * terms->optimizer_per_weight_byte) +
                           tile->layers_in_flight[c] * stash + terms->overhead_bytes;
        const int fits = peak <= terms->hbm_capacity;
        const float time = fits ? step : NONE;
        const float best = tile->best_time[c];
        fitting += fits;
        tile->best_key[c] = time < best ? key : tile->best_key[c];
        tile->best_time[c] = smaller(time, best);
    }
    return fitting;
}

static int64_t price_tile(
    Tile *restrict tile, int length, const Table *table, const int32_t *keys, int64_t num_keys, const Terms *terms)
{
    int64_t fitting = 0;
    for (int64_t k = 0; k < num_keys; k++)
        switch (table->num_groups) {
        case 1: fitting += price(tile, length, table, keys[k], terms, 1); break;
        case 2: fitting += price(tile, length, table, keys[k], terms, 2); break;
        default: fitting += price(tile, length, table, keys[k], terms, table->num_groups);
        }
    return fitting;
}

void price_blocks(const Terms *terms, const Table *table, const Blocks *blocks, Winners *winners)
{
    Tile tile;
    for (int64_t b = 0; b < blocks->count; b++) {
        const int32_t *keys = blocks->keys + blocks->key_start[b];
        const int64_t num_keys = blocks->key_start[b + 1] - blocks->key_start[b], end = blocks->choice_start[b + 1];
        for (int64_t start = blocks->choice_start[b]; start < end; start += TILE) {
            const int length = end - start < TILE ? (int)(end - start) : TILE;
            fill(&tile, blocks, start, length, terms);
            winners->feasible += price_tile(&tile, length, table, keys, num_keys, terms);
            for (int c = 0; c < length; c++) {
                const int32_t group = blocks->group[start + c];
                if (tile.best_time[c] < winners->time[group]) {
                    winners->time[group] = tile.best_time[c];
                    winners->key[group] = tile.best_key[c];
                    winners->choice[group] = start + c;
                }
            }
        }
    }
}
