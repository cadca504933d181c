// What a decode step over a forest of sequences has to do, as lists that every kernel reads alike.
#pragma once

#include <cstdint>

namespace parrot {

// One item of work: a piece of the KV of one node, for some of the rows that share it.
struct Item {
  int32_t shared;        // 1: more than one row reads it
  int32_t row_begin;     // where its rows begin in `row_index`
  int32_t row_count;
  int32_t table_offset;  // where its blocks begin in the block tables
  int32_t tokens;
  int32_t partial_base;  // of its first row; the others' follow
  int32_t direct;        // 1: nothing else is to be added to what it makes
  int32_t cost;          // estimated, in tokens read by one row
};
static_assert(sizeof(Item) == 8 * sizeof(int32_t), "kernels read items as eight numbers");

// What work costs, in the time that one token takes to be read for one row and KV head.
struct Costs {
  double row;      // arithmetic of one token for each further row of an item
  double item;     // beginning and ending an item
  double partial;  // writing a partial result, and reading it again to merge it
};

struct Shape {
  int32_t block_tokens;
  int32_t group;      // query heads of one KV head
  int32_t tile_rows;  // query rows of one item at most, in heads: `row_count * group`
  int32_t workers;    // who take items from the list
  int32_t kv_heads;   // each item is done once for each of them
};

struct Lists {
  Item* items;
  int32_t item_capacity;
  int32_t* row_index;
  int32_t row_capacity;
  int32_t* partial_begin;  // one more than there are rows
  int32_t* partial_index;
  int32_t partial_capacity;
};

struct Counts {
  int32_t items;
  int32_t rows;
  int32_t partials;
  int32_t nodes;
};

}  // namespace parrot

extern "C" {

// Plans a step. `order` holds the rows in the order of the step before, and gets this step's; `shared`
// is null, or says how many blocks each row of `order` but the first has in common with the one before.
// Returns 0, or the number of the list that is too small for any plan: 1 items, 2 rows, 3 partials; 4: there is
// no memory; or what is wrong with a forest that is given: 5 the order does not name each row once, 6 a row
// shares blocks that are not full in both, 7 the blocks that it shares are not the same.
__attribute__((visibility("default"))) int parrot_plan(const int32_t* tables, int64_t stride, const int32_t* lengths, int32_t rows,
                const parrot::Shape* shape, const parrot::Costs* costs, int32_t* order,
                const int32_t* shared, const parrot::Lists* lists, parrot::Counts* counts);
}
