#include "plan.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

namespace parrot {
namespace {

// What `parrot_plan` returns beside the numbers of lists.
constexpr int kNoMemory = 4, kNoOrder = 5, kNotFull = 6, kNotShared = 7;

// A stretch of KV that the rows order[first..last] read, and nobody else.
struct Node {
  int32_t first, last;
  int32_t begin;   // blocks before it
  int32_t tokens;
};

// The rows' block tables as a radix tree, found without building one: rows in the order of their tables,
// and how many blocks each has in common with the one before.
class Forest {
 public:
  Forest(const int32_t* tables, int64_t stride, const int32_t* lengths, int32_t rows, const Shape& shape,
         int32_t* order)
      : tables_(tables), stride_(stride), lengths_(lengths), rows_(rows), shape_(shape), order_(order) {}

  const int32_t* table(int32_t row) const { return tables_ + row * stride_; }
  int64_t table_offset(int32_t row) const { return row * stride_; }
  int32_t length(int32_t row) const { return lengths_[row]; }

  // Only blocks that are full in both can be the same for both.
  int32_t common(int32_t a, int32_t b) const {
    const int32_t most = std::min(lengths_[a], lengths_[b]) / shape_.block_tokens;
    const int32_t *x = table(a), *y = table(b);
    int32_t at = 0;
    // Tables that share a prefix share hundreds of blocks: sixteen at a time.
    while (at + 16 <= most && std::memcmp(x + at, y + at, 16 * sizeof(int32_t)) == 0) at += 16;
    while (at < most && x[at] == y[at]) ++at;
    return at;
  }

  // What of a forest that is given can't be: an order that is none, or rows that have not that in common.
  // KV in one and the same block has one and the same past, so the last block says it of all before it.
  int fault(const int32_t* shared) const {
    std::vector<bool> seen(rows_, false);
    for (int32_t at = 0; at < rows_; ++at) {
      const int32_t row = order_[at];
      if (row < 0 || row >= rows_ || seen[row]) return kNoOrder;
      seen[row] = true;
    }
    for (int32_t at = 1; at < rows_; ++at) {
      const int32_t a = order_[at - 1], b = order_[at], last = shared[at] - 1;
      if (last < -1 || last >= std::min(lengths_[a], lengths_[b]) / shape_.block_tokens) return kNotFull;
      if (last >= 0 && table(a)[last] != table(b)[last]) return kNotShared;
    }
    return 0;
  }

  // From one step to the next the order hardly changes, and then this is one look at each pair.
  void sort() {
    auto before = [this](int32_t a, int32_t b) { return less(a, b); };
    if (!std::is_sorted(order_, order_ + rows_, before)) std::sort(order_, order_ + rows_, before);
  }

  std::vector<Node> nodes(const int32_t* given, const Costs& costs) {
    std::vector<int32_t> common_with_last(rows_ + 1, 0);
    for (int32_t at = 1; at < rows_; ++at) {
      common_with_last[at] = given != nullptr ? given[at] : common(order_[at - 1], order_[at]);
    }
    std::vector<Node> found;
    found.reserve(2 * rows_);
    split(common_with_last.data(), costs, found);
    return found;
  }

 private:
  bool less(int32_t a, int32_t b) const {
    if (a == b) return false;
    const int32_t at = common(a, b);
    const int32_t most = std::min(lengths_[a], lengths_[b]) / shape_.block_tokens;
    if (at < most) return table(a)[at] < table(b)[at];
    // One is the other's beginning, as far as blocks are full: the rows' own numbers decide.
    return lengths_[a] / shape_.block_tokens != lengths_[b] / shape_.block_tokens
               ? lengths_[a] < lengths_[b]
               : a < b;
  }

  struct Range {
    int32_t first, last, begin;
  };

  void split(const int32_t* common_with_last, const Costs& costs, std::vector<Node>& found) const {
    std::vector<Range> todo;
    if (rows_ > 0) todo.push_back({0, rows_ - 1, 0});
    while (!todo.empty()) {
      Range range = todo.back();
      todo.pop_back();
      if (range.first == range.last) {
        const int32_t tokens = lengths_[order_[range.first]] - range.begin * shape_.block_tokens;
        if (tokens > 0) found.push_back({range.first, range.last, range.begin, tokens});
        continue;
      }
      int32_t least = std::numeric_limits<int32_t>::max();
      for (int32_t at = range.first + 1; at <= range.last; ++at) least = std::min(least, common_with_last[at]);
      const int32_t tokens = (least - range.begin) * shape_.block_tokens;
      const double members = range.last - range.first + 1;
      // What is not read again, against partial results that would not be there.
      if (tokens * (members - 1) * (1 - costs.row) > members * costs.partial + costs.item) {
        found.push_back({range.first, range.last, range.begin, tokens});
        range.begin = least;
      }
      int32_t first = range.first;
      for (int32_t at = range.first + 1; at <= range.last; ++at) {
        if (common_with_last[at] == least) {
          todo.push_back({first, at - 1, range.begin});
          first = at;
        }
      }
      todo.push_back({first, range.last, range.begin});
    }
  }

  const int32_t* tables_;
  int64_t stride_;
  const int32_t* lengths_;
  int32_t rows_;
  Shape shape_;
  int32_t* order_;
};

constexpr double kWhole = 1e12;  // no node costs more

int32_t bounded(double value) {
  return static_cast<int32_t>(std::min<double>(value, std::numeric_limits<int32_t>::max()));
}

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Nodes cut into items: into tiles of rows, and each tile's KV into chunks of about one cost.
class Cutter {
 public:
  Cutter(const std::vector<Node>& nodes, const Shape& shape, const Costs& costs)
      : nodes_(nodes), shape_(shape), costs_(costs), tile_(std::max(1, shape.tile_rows / shape.group)) {
    for (const Node& node : nodes_) {
      for (int32_t at = node.first; at <= node.last; at += tile_) total_ += cost(tile_size(node, at), node.tokens);
    }
  }

  double cost(int32_t rows, int32_t tokens) const {
    return costs_.item + tokens * (1 + costs_.row * (rows * shape_.group - 1)) + costs_.partial * rows;
  }

  int32_t tile_size(const Node& node, int32_t at) const { return std::min(tile_, node.last - at + 1); }
  int32_t tile() const { return tile_; }

  // Every worker's share in a few pieces: the last ones to end then end at about the same time.
  double target() const {
    constexpr double kPieces = 4;
    return total_ * shape_.kv_heads / (shape_.workers * kPieces);
  }

  // Whole blocks, at least one.
  int32_t chunk(int32_t rows, int32_t tokens, double target) const {
    const double each = 1 + costs_.row * (rows * shape_.group - 1);
    const double fits = (target - costs_.item - costs_.partial * rows) / each;
    const double least = 4 * (costs_.item + costs_.partial * rows) + shape_.block_tokens;
    const double wanted = std::max(fits, least);
    if (wanted >= tokens) return tokens;
    // Pieces of one length: a short rest would cost nearly as much as a long one.
    const int32_t pieces = static_cast<int32_t>(tokens / wanted) + 1;
    return ceil_div(ceil_div(tokens, pieces), shape_.block_tokens) * shape_.block_tokens;
  }

 private:
  const std::vector<Node>& nodes_;
  const Shape& shape_;
  const Costs& costs_;
  int32_t tile_;
  double total_ = 0;
};

class Writer {
 public:
  Writer(const Forest& forest, const int32_t* order, int32_t rows, int32_t block_tokens, const Lists& lists)
      : forest_(forest), order_(order), rows_(rows), block_tokens_(block_tokens), lists_(lists), pieces_(rows, 0) {}

  // How many partial results each row will have; false when a list is too small for them.
  bool measure(const std::vector<Node>& nodes, const Cutter& cutter, double target, int* full) {
    target_ = target;
    std::fill(pieces_.begin(), pieces_.end(), 0);
    int64_t items = 0, rows = 0;
    for (const Node& node : nodes) {
      for (int32_t at = node.first; at <= node.last; at += cutter.tile()) {
        const int32_t count = cutter.tile_size(node, at);
        const int32_t chunks = ceil_div(node.tokens, cutter.chunk(count, node.tokens, target));
        items += chunks;
        rows += static_cast<int64_t>(chunks) * count;
        for (int32_t place = at; place < at + count; ++place) pieces_[order_[place]] += chunks;
      }
    }
    *full = items > lists_.item_capacity ? 1 : rows > lists_.row_capacity ? 2 : rows > lists_.partial_capacity ? 3 : 0;
    return *full == 0;
  }

  // With the target that was measured last.
  Counts write(const std::vector<Node>& nodes, const Cutter& cutter) {
    for (const Node& node : nodes) {
      for (int32_t at = node.first; at <= node.last; at += cutter.tile()) {
        tile(node, at, cutter.tile_size(node, at), cutter);
      }
    }
    std::sort(lists_.items, lists_.items + items_, [](const Item& a, const Item& b) {
      return a.cost != b.cost ? a.cost > b.cost : a.row_begin < b.row_begin;
    });
    partials();
    return {items_, written_, partial_, static_cast<int32_t>(nodes.size())};
  }

 private:
  void tile(const Node& node, int32_t at, int32_t count, const Cutter& cutter) {
    const int32_t chunk = cutter.chunk(count, node.tokens, target_);
    const int64_t blocks = forest_.table_offset(order_[at]) + node.begin;
    bool direct = true;
    for (int32_t place = at; place < at + count; ++place) direct = direct && pieces_[order_[place]] == 1;
    for (int32_t begin = 0; begin < node.tokens; begin += chunk) {
      const int32_t tokens = std::min(chunk, node.tokens - begin);
      Item& item = lists_.items[items_++];
      item = {node.last > node.first, written_, count, static_cast<int32_t>(blocks + begin / block_tokens_),
              tokens, direct ? 0 : partial_, direct, bounded(cutter.cost(count, tokens))};
      for (int32_t place = at; place < at + count; ++place) lists_.row_index[written_++] = order_[place];
      if (!direct) partial_ += count;
    }
  }

  // For each row the partial results to merge; none where it has one and writes it directly.
  void partials() {
    std::vector<int32_t> counts(rows_ + 1, 0);
    for (int32_t at = 0; at < items_; ++at) {
      const Item& item = lists_.items[at];
      for (int32_t row = 0; !item.direct && row < item.row_count; ++row) {
        ++counts[lists_.row_index[item.row_begin + row] + 1];
      }
    }
    for (int32_t row = 0; row < rows_; ++row) counts[row + 1] += counts[row];
    std::copy(counts.begin(), counts.end(), lists_.partial_begin);
    for (int32_t at = 0; at < items_; ++at) {
      const Item& item = lists_.items[at];
      for (int32_t row = 0; !item.direct && row < item.row_count; ++row) {
        lists_.partial_index[counts[lists_.row_index[item.row_begin + row]]++] = item.partial_base + row;
      }
    }
  }

  const Forest& forest_;
  const int32_t* order_;
  int32_t rows_;
  int32_t block_tokens_;
  const Lists& lists_;
  std::vector<int32_t> pieces_;
  double target_ = 0;
  int32_t items_ = 0, written_ = 0, partial_ = 0;
};

}  // namespace
}  // namespace parrot

namespace parrot {
namespace {

// The lists of a forest in which sharing pays as `costs` say; or which list is too small.
int planned(Forest& forest, const int32_t* order, int32_t rows, const Shape& shape, const Costs& costs,
            const int32_t* shared, const Lists& lists, Counts* counts) {
  const std::vector<Node> nodes = forest.nodes(shared, costs);
  const Cutter cutter(nodes, shape, costs);
  Writer writer(forest, order, rows, shape.block_tokens, lists);
  int full = 0;
  // Of larger pieces there are fewer; of whole nodes the fewest.
  for (double target = cutter.target(); !writer.measure(nodes, cutter, target, &full); target *= 2) {
    if (target > kWhole) return full;
  }
  *counts = writer.write(nodes, cutter);
  return 0;
}

}  // namespace
}  // namespace parrot

int parrot_plan(const int32_t* tables, int64_t stride, const int32_t* lengths, int32_t rows,
                const parrot::Shape* shape, const parrot::Costs* costs, int32_t* order,
                const int32_t* shared, const parrot::Lists* lists, parrot::Counts* counts) {
  try {
    parrot::Forest forest(tables, stride, lengths, rows, *shape, order);
    if (shared == nullptr) forest.sort();
    if (const int fault = shared == nullptr ? 0 : forest.fault(shared)) return fault;
    parrot::Costs costs_now = *costs;
    // Nodes within nodes have more rows, all together, than lists may hold: then less is shared.
    for (;;) {
      const int full = parrot::planned(forest, order, rows, *shape, costs_now, shared, *lists, counts);
      if (full == 0 || costs_now.item > parrot::kWhole) return full;
      costs_now.item = 8 * costs_now.item + 64;
    }
  } catch (const std::bad_alloc&) {
    return parrot::kNoMemory;
  }
}
