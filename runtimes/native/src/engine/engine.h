// ONNX Runtime through its C interface: the library opened by name, sessions, values and bindings.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace ort {
struct Status;
struct Value;
struct Session;
struct Binding;
}  // namespace ort

namespace edgedecode {

template <class T>
constexpr int kType = std::is_floating_point_v<T> ? 1 : std::is_unsigned_v<T> ? 2 : sizeof(T) == 1 ? 3
                      : sizeof(T) == 4            ? 6
                                                  : 7;

// A value of the engine over memory that its holder keeps.
class Value {
 public:
  template <class T>  // by the engine's numbers: float, uint8_t, int8_t, int32_t, int64_t
  Value(T* data, std::vector<int64_t> shape) : Value(data, sizeof(T), kType<std::remove_cv_t<T>>, shape) {}
  Value(const Value&) = delete;
  ~Value();
  ort::Value* get() const { return value_; }

 private:
  Value(const void* data, size_t size, int type, const std::vector<int64_t>& shape);
  ort::Value* value_ = nullptr;
};

// What a session's passes read and write. A value may be dropped once it is bound; its memory may not.
class Binding {
 public:
  ~Binding();
  void input(const char* name, const Value& value);
  void output(const char* name, const Value& value);

 private:
  friend class Session;
  Binding(ort::Session* session);
  ort::Binding* binding_ = nullptr;
  std::set<std::string> inputs_;
};

// Opens the engine, which stays; library: its path or name. Throws capability_error.
void load_engine(const std::string& library);

// An open graph on the processor, with an allocator of its own.
class Session {
 public:
  // The engine must be loaded. threads: the most of a node. arena: the allocator's limit, region: its first piece, in
  // bytes. folded: the most bytes of a folded constant. Throws capability_error for a graph that the engine refuses.
  static std::unique_ptr<Session> open(const std::string& graph, int threads, int64_t arena, int64_t region,
                                       int64_t folded);
  ~Session();
  std::unique_ptr<Binding> bind() const;
  void run(const Binding& binding, const std::string& what) const;  // throws budget_exceeded, capability_error

 private:
  Session() = default;
  ort::Session* session_ = nullptr;
  size_t inputs_ = 0;  // of the graph: the engine does not notice that one is not bound
};

bool engine_is_loaded();

}  // namespace edgedecode
