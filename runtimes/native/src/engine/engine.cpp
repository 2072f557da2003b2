#include "engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "../errors.h"
#include "kernels.h"
#include "onnxruntime.h"

extern "C" {
ort::Status* RegisterCustomOps(ort::Options* options, const ort::ApiBase* base);
void edgedecode_limit_nodes(int threads);
}

namespace ort {
struct Env;
struct MemoryInfo;
struct ArenaConfig;
struct RunOptions;
}  // namespace ort

namespace edgedecode {
namespace {

// Further places in the table, by the names of the functions in the engine's header.
enum Place : int {
  kGetErrorMessage = 2, kCreateEnv = 3, kCreateSession = 7, kCreateSessionOptions = 10, kSetSessionExecutionMode = 13,
  kDisableMemPattern = 17, kSetSessionLogSeverityLevel = 22, kSetIntraOpNumThreads = 24, kSetInterOpNumThreads = 25,
  kSessionGetInputCount = 30,
  kCreateTensorWithDataAsOrtValue = 49, kCreateMemoryInfo = 68, kCreateCpuMemoryInfo = 69, kReleaseMemoryInfo = 94,
  kReleaseSession = 95, kReleaseValue = 96, kReleaseSessionOptions = 100, kAddSessionConfigEntry = 130,
  kRunWithBinding = 133, kCreateIoBinding = 134, kReleaseIoBinding = 135, kBindInput = 136, kBindOutput = 137,
  kCreateAndRegisterAllocator = 144, kReleaseArenaCfg = 157, kCreateArenaCfgV2 = 164,
};
constexpr int kFatal = 4, kArenaAllocator = 1, kDeviceAllocator = 0, kDefaultMemory = 0, kSequential = 0;
constexpr size_t kDeadNbytes = 4096;

// The process's engine: one library, one environment. Never released: sessions of others may use it too.
struct Engine {
  std::mutex opening;
  std::string library;
  const ort::ApiBase* base = nullptr;
  ort::Env* env = nullptr;
  ort::MemoryInfo* memory = nullptr;
};
Engine& engine() {
  static Engine* found = new Engine;
  return *found;
}

std::string first_line(const std::string& text) { return start_of(text, std::min(text.find('\n'), size_t{300})); }

// Returns the engine's message and releases the status; "" for success.
std::string message(ort::Status* status) {
  if (status == nullptr) return "";
  const std::string found = ort::call<const char*>(kGetErrorMessage, static_cast<const ort::Status*>(status));
  ort::drop(status);
  return found.empty() ? "unknown error" : found;
}

void check(ort::Status* status, const std::string& what) {
  const std::string found = message(status);
  if (found.empty()) return;
  if (found.find("smaller than requested") != std::string::npos)
    throw budget_exceeded(what, " needs more memory than was planned for it: package the pack again");
  if (found.find("bad_alloc") != std::string::npos) throw std::bad_alloc();
  throw capability_error(what, ": ONNX Runtime: ", first_line(found));
}

// While it lives, sessions that are opened get an allocator with this limit: the engine has one setting for all.
class Limited {
 public:
  Limited(Engine& engine, int64_t arena, int64_t region) : engine_(engine), arena_(arena) {
    const char* keys[] = {"max_mem", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"};
    const size_t values[] = {static_cast<size_t>(arena), static_cast<size_t>(region), kDeadNbytes};
    set(keys, values, 3);
  }
  ~Limited() {  // otherwise the engine would hold the session's memory after it was closed
    const char* keys[] = {"max_mem"};
    const size_t values[] = {static_cast<size_t>(arena_)};
    try {
      set(keys, values, 1);
    } catch (...) {  // also std::bad_alloc
    }
  }

 private:
  void set(const char* const* keys, const size_t* values, size_t count) const {
    ort::MemoryInfo* info = nullptr;
    ort::ArenaConfig* config = nullptr;
    check(ort::call(kCreateMemoryInfo, "Cpu", kArenaAllocator, 0, kDefaultMemory, &info), "memory");
    check(ort::call(kCreateArenaCfgV2, keys, values, count, &config), "memory");
    ort::Status* status = ort::call(kCreateAndRegisterAllocator, engine_.env, static_cast<const ort::MemoryInfo*>(info),
                                    static_cast<const ort::ArenaConfig*>(config));
    ort::call<void>(kReleaseArenaCfg, config);
    ort::call<void>(kReleaseMemoryInfo, info);
    check(status, "memory");
  }
  Engine& engine_;
  const int64_t arena_;
};

}  // namespace

Value::Value(const void* data, size_t size, int type, const std::vector<int64_t>& shape) {
  static int64_t nothing = 0;  // where a shape has no elements
  size_t count = 1;
  for (const int64_t each : shape) count *= static_cast<size_t>(each);
  void* memory = const_cast<void*>(data == nullptr ? &nothing : data);
  check(ort::call(kCreateTensorWithDataAsOrtValue, static_cast<const ort::MemoryInfo*>(engine().memory), memory,
                  count * size, shape.data(), shape.size(), type, &value_),
        "a value");
}
Value::~Value() { ort::call<void>(kReleaseValue, value_); }

Binding::Binding(ort::Session* session) { check(ort::call(kCreateIoBinding, session, &binding_), "a binding"); }
Binding::~Binding() { ort::call<void>(kReleaseIoBinding, binding_); }
void Binding::input(const char* name, const Value& value) {
  check(ort::call(kBindInput, binding_, name, static_cast<const ort::Value*>(value.get())), name);
  if (std::string(name).compare(0, 5, "lora.") != 0) inputs_.insert(name);  // an adapter's are optional
}
void Binding::output(const char* name, const Value& value) {
  check(ort::call(kBindOutput, binding_, name, static_cast<const ort::Value*>(value.get())), name);
}

void load_engine(const std::string& library) {
  Engine& found = engine();
  std::lock_guard<std::mutex> lock(found.opening);
  if (found.env != nullptr) {
    if (library != found.library)
      throw capability_error("this process runs ", found.library, " already: give it as the engine, not ", library);
    return;
  }
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw capability_error("ONNX Runtime cannot be opened (", first_line(dlerror()),
                           "): give the path of libonnxruntime.so as \"engine\"");
  const auto get = reinterpret_cast<const ort::ApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (get == nullptr) throw capability_error(library, " is not ONNX Runtime: it has no OrtGetApiBase");
  const ort::ApiBase* base = get();
  const void* const* api = base->GetApi(ort::kVersion);
  if (api == nullptr)
    throw capability_error(library, " is ONNX Runtime ", base->GetVersionString(), ": 1.", ort::kVersion,
                           " or newer is needed");
  ort::api = api;
  check(ort::call(kCreateEnv, kFatal, "edgedecode", &found.env), library);
  check(ort::call(kCreateCpuMemoryInfo, kDeviceAllocator, kDefaultMemory, &found.memory), library);
  found.base = base;
  found.library = library;
}

std::unique_ptr<Session> Session::open(const std::string& graph, int threads, int64_t arena, int64_t region,
                                       int64_t folded) {
  Engine& found = engine();
  std::lock_guard<std::mutex> lock(found.opening);
  ort::Options* options = nullptr;
  check(ort::call(kCreateSessionOptions, &options), graph);
  const std::unique_ptr<ort::Options, void (*)(ort::Options*)> held(
      options, [](ort::Options* each) { ort::call<void>(kReleaseSessionOptions, each); });
  check(ort::call(kSetSessionLogSeverityLevel, options, kFatal), graph);
  check(ort::call(kSetIntraOpNumThreads, options, 1), graph);  // our operators have a pool of their own
  check(ort::call(kSetInterOpNumThreads, options, 1), graph);
  check(ort::call(kSetSessionExecutionMode, options, kSequential), graph);
  check(ort::call(kDisableMemPattern, options), graph);
  const std::pair<const char*, std::string> entries[] = {
      {"session.load_model_format", "ONNX"},
      {"session.use_env_allocators", "1"},
      {"optimization.constant_folding_max_output_size_in_bytes", std::to_string(folded)}};
  for (const auto& each : entries)
    check(ort::call(kAddSessionConfigEntry, options, each.first, each.second.c_str()), graph);
  check(RegisterCustomOps(options, found.base), graph);
  std::unique_ptr<Session> session(new Session);
  const Limited limited(found, arena, region);
  edgedecode_limit_nodes(threads);
  ort::Status* status = ort::call(kCreateSession, static_cast<const ort::Env*>(found.env), graph.c_str(),
                                  static_cast<const ort::Options*>(options), &session->session_);
  edgedecode_limit_nodes(1024);
  check(status, graph + " cannot be opened");
  check(ort::call(kSessionGetInputCount, static_cast<const ort::Session*>(session->session_), &session->inputs_), graph);
  return session;
}

Session::~Session() {
  if (session_ != nullptr) ort::call<void>(kReleaseSession, session_);
}

std::unique_ptr<Binding> Session::bind() const { return std::unique_ptr<Binding>(new Binding(session_)); }

void Session::run(const Binding& binding, const std::string& what) const {
  if (binding.inputs_.size() != inputs_)
    throw manifest_error(what, ": its graph has ", inputs_, " inputs, and native.json names ", binding.inputs_.size(),
                         ": package the pack again");
  check(ort::call(kRunWithBinding, session_, static_cast<const ort::RunOptions*>(nullptr),
                  static_cast<const ort::Binding*>(binding.binding_)),
        what);
}

bool engine_is_loaded() {
  std::lock_guard<std::mutex> lock(engine().opening);
  return engine().env != nullptr;
}

}  // namespace edgedecode
