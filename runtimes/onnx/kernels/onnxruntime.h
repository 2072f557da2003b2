// The part of ONNX Runtime's C API that a custom operator needs. No package ships the header. The API is a table of
// functions with fixed indices, so the few entries used here are declared by index (version 22 and later).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

struct Status;
struct Value;
struct Info;
struct Context;
struct KernelInfo;
struct Domain;
struct Options;

constexpr uint32_t kVersion = 22;

// Places in the table, by the names of the functions in the engine's header.
enum Place : int {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelContextGetInputCount = 88,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelContextParallelFor = 274,
};

enum Type : int { kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7 };
enum Characteristic : int { kRequired = 0, kOptional = 1 };

struct ApiBase {
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const void*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetProvider)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputCount)(const CustomOp*);
  void (*Compute)(void*, Context*);
  void (*Destroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemory)(const CustomOp*, size_t);
  int (*GetVariadicInputMin)(const CustomOp*);
  int (*GetVariadicInputSame)(const CustomOp*);
  int (*GetVariadicOutputMin)(const CustomOp*);
  int (*GetVariadicOutputSame)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const void*, const KernelInfo*, void**);
  Status* (*ComputeV2)(void*, Context*);
  Status* (*InferShapes)(const CustomOp*, void*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  void* more[4];
};

extern const void* const* api;

// Calls a function of the table; the arguments must have exactly the types of its parameters.
template <class Result = Status*, class... Types>
Result call(int place, Types... arguments) {
  return reinterpret_cast<Result (*)(Types...)>(const_cast<void*>(api[place]))(arguments...);
}

inline Status* fail(const char* message) { return call(kCreateStatus, 1, message); }
inline void drop(Status* status) {
  if (status != nullptr) call<void>(kReleaseStatus, status);
}

// Reads an integer or float attribute, or returns the default if the node lacks it.
inline int64_t integer(const KernelInfo* info, const char* name, int64_t otherwise) {
  int64_t value = otherwise;
  if (Status* status = call(kKernelInfoGetAttributeInt64, info, name, &value)) {
    drop(status);
    return otherwise;
  }
  return value;
}
inline float number(const KernelInfo* info, const char* name, float otherwise) {
  float value = otherwise;
  if (Status* status = call(kKernelInfoGetAttributeFloat, info, name, &value)) {
    drop(status);
    return otherwise;
  }
  return value;
}

constexpr size_t kMostDimensions = 4;

// An input's memory and shape; data is null if an optional input is left out.
struct Tensor {
  void* data = nullptr;
  size_t dimensions = 0;
  int64_t shape[kMostDimensions] = {};
  bool readable = true;  // false: more dimensions than any operator here supports

  template <class T>
  T* as() const { return static_cast<T*>(data); }
  bool has_rows() const { return readable && dimensions >= 1; }
  int64_t last() const { return has_rows() ? shape[dimensions - 1] : -1; }
  int64_t rows() const {  // number of elements divided by the last dimension
    if (!has_rows()) return -1;
    int64_t count = 1;
    for (size_t i = 0; i + 1 < dimensions; i++) count *= shape[i];
    return count;
  }
  int64_t count() const { return data == nullptr ? 0 : has_rows() ? rows() * last() : readable ? 1 : -1; }
};

inline void* memory(const Value* value) {
  void* data = nullptr;
  drop(call(kGetTensorMutableData, value, &data));
  return data;
}

inline Tensor input(const Context* context, size_t index) {
  Tensor tensor;
  size_t count = 0;
  drop(call(kKernelContextGetInputCount, context, &count));
  const Value* value = nullptr;
  if (index < count) drop(call(kKernelContextGetInput, context, index, &value));
  if (value == nullptr) return tensor;
  Info* info = nullptr;
  drop(call(kGetTensorTypeAndShape, value, &info));
  if (info == nullptr) return tensor;  // an input of the graph that nobody bound
  drop(call(kGetDimensionsCount, info, &tensor.dimensions));
  tensor.readable = tensor.dimensions <= kMostDimensions;
  if (tensor.readable) drop(call(kGetDimensions, info, tensor.shape, tensor.dimensions));
  call<void>(kReleaseTensorTypeAndShapeInfo, info);
  tensor.data = memory(value);
  return tensor;
}

// Allocates an output; null if it is left out or cannot be allocated.
inline void* output(Context* context, size_t index, const int64_t* shape, size_t dimensions) {
  Value* value = nullptr;
  drop(call(kKernelContextGetOutput, context, index, shape, dimensions, &value));
  return value == nullptr ? nullptr : memory(value);
}

// Runs parts on the session's own threads and waits for them; returns false on failure.
inline bool parallel(const Context* context, size_t parts, void (*run)(void*, size_t), void* data) {
  Status* status = call(kKernelContextParallelFor, context, run, parts, parts, data);
  drop(status);
  return status == nullptr;
}

}  // namespace ort
