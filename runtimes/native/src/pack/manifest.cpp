#include "manifest.h"

#include <sys/stat.h>

#include <algorithm>

#include "../errors.h"
#include "files.h"

namespace edgedecode {
namespace {

constexpr int64_t kMostNbytes = 4 << 20;  // that of a model with adapters has 48 kB
constexpr int64_t kMostPosition = 1 << 30, kMostFeatures = 1 << 24;  // so that no sum of the plan overflows
constexpr int kMostRows = 256;            // of a pass: ROWS_PER_PASS of onnx_footprint.py
constexpr int kVersion = 1;
constexpr const char* kFormat = "edgedecode-native";
constexpr const char* kAgain = "; package the pack again";

int64_t size_of(const std::string& path) {  // -1: there is no such file
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) ? static_cast<int64_t>(found.st_size) : -1;
}

// Members of one object of the file; `where` names it in errors.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) { object.object(where_); }
  const Json& at(const std::string& key) const { return object_.at(key, where_); }
  std::string name(const std::string& key) const { return where_ + "." + key; }
  std::string text(const std::string& key) const { return at(key).string(name(key)); }
  bool flag(const std::string& key) const { return at(key).boolean(name(key)); }
  int64_t number(const std::string& key, int64_t least, int64_t most) const {
    return at(key).integer(name(key), least, most);
  }
  int count(const std::string& key, int least = 0) const { return static_cast<int>(number(key, least, 1 << 24)); }
  int64_t nbytes(const std::string& key) const { return number(key, 0, int64_t{1} << 48); }
  const Json::Array& list(const std::string& key) const { return at(key).array(name(key)); }
  Fields inner(const std::string& key) const { return {at(key), name(key)}; }
  const Json::Object& members() const { return object_.object(where_); }

 private:
  const Json& object_;
  std::string where_;
};

// Whether a file's name stays inside the folder.
bool plain(const std::string& name) {
  if (name.empty() || name.size() > 400 || name.find_first_of("\\:") != std::string::npos) return false;
  const std::string parts = "/" + name + "/";
  for (const char* refused : {"//", "/./", "/../"})
    if (parts.find(refused) != std::string::npos) return false;
  return true;
}

class Reader {
 public:
  explicit Reader(PackManifest& found) : found_(found) {}

  void read() {
    const Fields top(found_.json, "native.json");
    const std::string format = top.text("format");
    if (format != kFormat) throw input_error("the format is \"", start_of(format, 40), "\", not \"", kFormat, "\"");
    const int64_t version = top.number("version", 1, 1 << 30);
    if (version > kVersion)
      throw manifest_error(found_.folder, " has format version ", version, ", this library reads up to ", kVersion,
                           ": upgrade it, or package the pack with edgedecode of the library's version");
    found_.name = top.text("name");
    found_.vocabulary_size = top.count("vocabulary_size", 1);
    files(top.inner("files"));
    found_.tokenizer = file(top, "tokenizer");
    for (const Json& id : top.list("end_ids"))
      found_.end_ids.push_back(static_cast<int32_t>(id.integer(top.name("end_ids"), 0, found_.vocabulary_size - 1)));
    const Fields models = top.inner("models");
    for (const auto& each : models.members()) model(each.first, models.inner(each.first));
    const PackedModel* target = found_.find("target");
    if (target == nullptr) throw input_error("native.json.models has no target");
    for (auto& each : found_.models)
      if (each.second.head) each.second.features_width = static_cast<int>(target->features.size()) * target->hidden;
  }

 private:
  void files(const Fields& listed) {
    for (const auto& each : listed.members()) {
      const Fields entry = listed.inner(each.first);
      if (!plain(each.first))
        throw input_error("it names the file \"", start_of(each.first, 60), "\", which may be outside");
      found_.files[each.first] = {entry.nbytes("nbytes"), entry.text("sha256")};
    }
  }

  // The whole path of a file that is listed; "" stays.
  std::string file(const Fields& fields, const std::string& key) const {
    const std::string name = fields.text(key);
    if (!name.empty() && found_.files.count(name) == 0)
      throw input_error(fields.name(key), " is \"", start_of(name, 60), "\", which is not among its files");
    return name.empty() ? "" : found_.folder + "/" + name;
  }

  void model(const std::string& name, const Fields& fields) {
    PackedModel model;
    model.name = name;
    model.graph = file(fields, "graph");
    model.weights = file(fields, "weights");
    model.token_ids_file = file(fields, "token_ids");
    for (const char* key : {"tiles", "given"}) {
      const Fields tiles = fields.inner(key);
      for (const auto& each : tiles.members()) model.tiles[each.first] = file(tiles, each.first);
    }
    model.rows = fields.count("rows", 1);
    model.vocabulary_size = fields.count("vocabulary_size", 1);
    model.context = fields.count("context", 1);
    model.hidden = fields.count("hidden", 1);
    model.rows_per_pass = static_cast<int>(fields.number("rows_per_pass", 2, kMostRows));
    model.logits_copies = fields.count("logits_copies");
    model.head = fields.flag("head");
    const std::string kv_type = fields.text("kv_type");
    if (kv_type != "float32" && kv_type != "int8")
      throw input_error(fields.name("kv_type"), " is \"", start_of(kv_type, 20), "\"");
    model.int8 = kv_type == "int8";
    const Fields memory = fields.inner("memory");
    model.loaded_nbytes = memory.nbytes("loaded");
    model.workspace_nbytes = memory.nbytes("workspace");
    model.thread_nbytes = memory.nbytes("thread");
    model.arena_nbytes = memory.nbytes("arena");
    for (const Json& each : fields.list("caches")) {
      const Fields cache(each, fields.name("caches"));
      const int64_t heads = cache.number("heads", 1, 1 << 16), size = cache.number("size", 16, 1 << 16);
      model.caches.push_back({cache.text("name"), heads, size});
    }
    for (const Json& each : fields.list("recurrent")) {
      const Fields shape(each, fields.name("recurrent"));
      model.recurrent.push_back({shape.text("name"), shape.count("values", 1), shape.count("width", 1)});
    }
    const Fields adapters = fields.inner("adapters");
    for (const auto& each : adapters.members())
      model.adapters[each.first] = adapter(each.first, adapters.inner(each.first));
    for (const Json& each : fields.list("features")) model.features.push_back(each.string(fields.name("features")));
    const int64_t features = static_cast<int64_t>(model.features.size()) * model.hidden;
    if (model.position_nbytes() > kMostPosition || features > kMostFeatures)
      throw input_error(fields.name("caches"), " or features are larger than any model's");
    if (model.token_ids_file.empty() ? model.rows < model.vocabulary_size : model.rows > model.vocabulary_size)
      throw input_error(fields.name("rows"), " is ", model.rows, " for a vocabulary of ", model.vocabulary_size,
                        " ids");
    found_.models[name] = std::move(model);
  }

  PackedAdapter adapter(const std::string& name, const Fields& fields) {
    PackedAdapter found{name, file(fields, "file"), found_.files[fields.text("file")].nbytes, {}, {}};
    for (const Json& each : fields.list("inputs")) {
      const Fields input(each, fields.name("inputs"));
      AdapterInput made{input.text("name"), input.nbytes("offset"), {}};
      for (const Json& size : input.list("shape")) made.shape.push_back(size.integer(input.name("shape"), 0, 1 << 20));
      const auto& count = made.shape;
      const std::string matrix = made.name.size() < 7 ? "" : made.name.substr(made.name.size() - 2);
      if (made.name.compare(0, 5, "lora.") || (matrix != ".a" && matrix != ".b"))
        throw input_error(input.name("name"), " is \"", start_of(made.name, 40), "\", which is no adapter's");
      const bool sizes = count.size() == 2 || count.size() == 3;
      const int64_t nbytes = !sizes ? -1 : count[0] * count[1] * (count.size() == 3 ? count[2] : 4);
      if (nbytes < 0 || nbytes > found.nbytes - made.offset || made.offset % 4)
        throw input_error(fields.name("inputs"), " has \"", start_of(made.name, 40), "\", which is not in the file");
      found.inputs.push_back(std::move(made));
    }
    for (const Json& id : fields.list("invocation"))
      found.invocation.push_back(static_cast<int32_t>(id.integer(fields.name("invocation"))));
    return found;
  }

  PackManifest& found_;
};

}  // namespace

int64_t PackedModel::position_nbytes() const {
  int64_t values = 0;
  for (const CacheShape& each : caches) values += each.heads * each.size;
  return int8 ? values : 4 * values;
}

const PackedModel* PackManifest::find(const std::string& model) const {
  const auto found = models.find(model);
  return found == models.end() ? nullptr : &found->second;
}

PackManifest PackManifest::read(const std::string& folder) {
  PackManifest found;
  found.folder = folder;
  const std::string path = folder + "/native.json";
  const int64_t nbytes = size_of(path);
  if (nbytes < 0)
    throw manifest_error(folder, " is no packaged folder: it has no native.json (make one with ",
                         "`edgedecode package PACK --native`)");
  if (nbytes > kMostNbytes) throw manifest_error(path, " is too large to be a folder's description", kAgain);
  const auto text = file_text(path, kMostNbytes);
  if (!text) throw manifest_error(path, " cannot be read: copy the folder again");
  try {
    found.json = Json::parse(*text, path);
    Reader(found).read();
  } catch (const Error& error) {
    if (error.code != EDGEDECODE_BAD_INPUT) throw;
    const std::string what = error.what();
    throw manifest_error((what.find(path) == 0 ? what : path + " is damaged: " + what), kAgain);
  }
  for (const auto& each : found.files) {
    const int64_t size = size_of(folder + "/" + each.first);
    if (size < 0) throw manifest_error(folder, "/", each.first, " is missing: copy the folder again");
    if (size != each.second.nbytes)
      throw manifest_error(folder, "/", each.first, " has ", size, " bytes, and had ", each.second.nbytes,
                           ": copy the folder again");
  }
  return found;
}

void PackManifest::verify() const {
  for (const auto& each : files) {
    const std::string path = folder + "/" + each.first;
    std::optional<Mapped> file;
    if (each.second.nbytes) file.emplace(path);
    if (sha256(file ? file->data() : nullptr, static_cast<size_t>(each.second.nbytes)) != each.second.sha256)
      throw manifest_error(path, " has changed since it was packaged: copy the folder again");
  }
}

}  // namespace edgedecode
