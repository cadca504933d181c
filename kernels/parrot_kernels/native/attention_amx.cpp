// For x86-64 with AMX: tiles of up to sixteen query rows. Of few rows they are too: a tile of three takes a
// fifth of the time of a full one, and the KV comes from memory no faster than that.
#include "avx512.hpp"

#define PARROT_NAMESPACE amx
#define PARROT_ROWS_AT_ONCE 8
#include "attention_simple.hpp"

namespace parrot {
namespace amx {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;

constexpr int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

// Tiles 0 and 1 are rows of queries or weights, 2 and 3 keys or values, 4 to 7 what comes out.
struct alignas(64) TileConfig {
  explicit TileConfig(int rows_of_tile) {
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = kTileBytes;
      rows[tile] = static_cast<uint8_t>(tile == 2 || tile == 3 ? kTileRows : rows_of_tile);
    }
  }
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

class Tiles : public Simple<BFloat16, Layout::kPairs> {
  using Base = Simple<BFloat16, Layout::kPairs>;

 public:
  using Weight = uint16_t;
  using Query = uint16_t;

  // All tiles have the same number of rows.
  static int padded(int rows) { return tiles_of(rows) * ((rows + tiles_of(rows) - 1) / tiles_of(rows)); }
  static int64_t wide_numbers(int) { return 0; }

  Tiles(int rows, int size, int block_tokens, float* wide)
      : Base(rows, size, block_tokens, wide), tiles_(tiles_of(rows)), rows_(padded(rows) / tiles_), size_(size) {
    const TileConfig config(rows_);
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  static void pack_query(const BFloat16* from, int size, uint16_t* to) { std::memcpy(to, from, size * sizeof *to); }

  void scores(const uint16_t* query, const BFloat16* keys, float* s) const {
    const uint16_t* first = &keys->bits;
    const uint16_t* second = first + static_cast<size_t>(16) * size_;
    constexpr size_t kScoreBytes = kStepTokens * sizeof(float);
    const size_t query_bytes = size_ * sizeof(uint16_t);
    for (int tile = 0; tile < tiles_; tile += 2) {
      const bool two = tile + 1 < tiles_;
      const uint16_t* q = query + static_cast<size_t>(tile) * rows_ * size_;
      _tile_zero(4);
      _tile_zero(5);
      _tile_zero(6);
      _tile_zero(7);
      for (int d = 0; d < size_; d += 32) {
        _tile_loadd(2, first + d * 16, kTileBytes);
        _tile_loadd(3, second + d * 16, kTileBytes);
        _tile_loadd(0, q + d, query_bytes);
        _tile_dpbf16ps(4, 0, 2);
        _tile_dpbf16ps(5, 0, 3);
        if (two) {
          _tile_loadd(1, q + static_cast<size_t>(rows_) * size_ + d, query_bytes);
          _tile_dpbf16ps(6, 1, 2);
          _tile_dpbf16ps(7, 1, 3);
        }
      }
      float* out = s + tile * rows_ * kStepTokens;
      _tile_stored(4, out, kScoreBytes);
      _tile_stored(5, out + 16, kScoreBytes);
      if (two) {
        _tile_stored(6, out + rows_ * kStepTokens, kScoreBytes);
        _tile_stored(7, out + rows_ * kStepTokens + 16, kScoreBytes);
      }
    }
  }

  static bool exceeds(const float* s, int groups, float limit) { return exceeds_of(s, groups, limit); }

  static float maximum(const float* s, int groups) { return maximum_of(s, groups); }

  static void weigh(const float* s, int groups, float scale, float most, uint16_t* weights, float* sums) {
    weights_of(s, groups, scale, most, weights, sums);
  }

  void add(const uint16_t* weights, const BFloat16* const* values, const int* strides, int groups, float* acc) const {
    constexpr size_t kWeightBytes = kStepTokens * sizeof(uint16_t);
    const size_t acc_bytes = size_ * sizeof(float);
    for (int dim = 0; dim < size_; dim += 32) {
      for (int tile = 0; tile < tiles_; tile += 2) {
        const bool two = tile + 1 < tiles_;
        float* out = acc + static_cast<size_t>(tile) * rows_ * size_ + dim;
        float* next = out + static_cast<size_t>(rows_) * size_;
        const uint16_t* w = weights + tile * rows_ * kStepTokens;
        _tile_loadd(4, out, acc_bytes);
        _tile_loadd(5, out + 16, acc_bytes);
        if (two) {
          _tile_loadd(6, next, acc_bytes);
          _tile_loadd(7, next + 16, acc_bytes);
        }
        for (int g = 0; g < groups; ++g) {
          const uint16_t* v = &values[g]->bits + static_cast<size_t>(dim) * strides[g];
          _tile_loadd(2, v, kTileBytes);
          _tile_loadd(3, v + static_cast<size_t>(16) * strides[g], kTileBytes);
          _tile_loadd(0, w + g * kGroupTokens, kWeightBytes);
          _tile_dpbf16ps(4, 0, 2);
          _tile_dpbf16ps(5, 0, 3);
          if (two) {
            _tile_loadd(1, w + rows_ * kStepTokens + g * kGroupTokens, kWeightBytes);
            _tile_dpbf16ps(6, 1, 2);
            _tile_dpbf16ps(7, 1, 3);
          }
        }
        _tile_stored(4, out, acc_bytes);
        _tile_stored(5, out + 16, acc_bytes);
        if (two) {
          _tile_stored(6, next, acc_bytes);
          _tile_stored(7, next + 16, acc_bytes);
        }
      }
    }
  }

 private:
  int tiles_, rows_, size_;
};

}  // namespace
}  // namespace amx
}  // namespace parrot

const parrot::Kernel* parrot::amx_kernel(Type type, Layout layout) {
  return type == Type::kBFloat16 && layout == Layout::kPairs ? &kKernel<amx::Tiles> : nullptr;
}
