// `native.json`: what a packaged folder says of its models. It is checked here before anything of it is opened.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../json.h"

namespace edgedecode {

// One layer's keys, or its values.
struct CacheShape {
  std::string name;
  int64_t heads, size;
};

// One recurrent operator's memory: floats of a state, and of a row that it keeps.
struct RecurrentShape {
  std::string name;
  int64_t values, width;
};

// One matrix of an adapter: the graph's input, its place in the file, its shape; three sizes: bytes, else floats.
struct AdapterInput {
  std::string name;
  int64_t offset;
  std::vector<int64_t> shape;
};

struct PackedAdapter {
  std::string name, file;
  int64_t nbytes = 0;
  std::vector<AdapterInput> inputs;  // all that take an adapter
  std::vector<int32_t> invocation;   // the tokens that activate it; none: it is always on
};

// As `NativeModel` in edgedecode/engines/native_model.py. Files have their whole path.
struct PackedModel {
  std::string name, graph, weights, token_ids_file;
  std::map<std::string, std::string> tiles;  // by the graph's input, those of another model too
  int rows = 0, vocabulary_size = 0, context = 0, hidden = 0, features_width = 0, rows_per_pass = 0, logits_copies = 0;
  bool head = false, int8 = false;
  int64_t loaded_nbytes = 0, workspace_nbytes = 0, thread_nbytes = 0, arena_nbytes = 0;
  std::vector<CacheShape> caches;
  std::vector<RecurrentShape> recurrent;
  std::map<std::string, PackedAdapter> adapters;
  std::vector<std::string> features;  // features_width: of a head, the floats that it reads of a position

  int64_t position_nbytes() const;  // of one position's keys and values
};

struct PackedFile {
  int64_t nbytes;
  std::string sha256;
};

struct PackManifest {
  std::string folder, name, tokenizer;
  int vocabulary_size = 0;
  std::vector<int32_t> end_ids;
  std::map<std::string, PackedModel> models;  // target, and draft or head
  std::map<std::string, PackedFile> files;    // by their names in the folder
  Json json;                                  // all of it: generation, texts

  // Throws manifest_error for a newer format, a damaged file, or files that are missing or have another size.
  static PackManifest read(const std::string& folder);
  void verify() const;  // digests: throws manifest_error
  const PackedModel* find(const std::string& model) const;
};

}  // namespace edgedecode
