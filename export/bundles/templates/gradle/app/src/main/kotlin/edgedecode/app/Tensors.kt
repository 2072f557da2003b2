package edgedecode.app

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.IntBuffer
import java.nio.LongBuffer

// Short names for making tensors. Those of direct buffers share the buffer's memory; the others are copies.

const val PAST = "past_key_values."

/** The output with the new keys or values of a past input. */
fun presentName(past: String): String = past.replace("past_key_values", "present")

fun longs(values: LongArray, vararg shape: Long): OnnxTensor =
    OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), LongBuffer.wrap(values), shape)

fun ints(values: IntArray, vararg shape: Long): OnnxTensor =
    OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), IntBuffer.wrap(values), shape)

fun floats(values: FloatBuffer, shape: LongArray): OnnxTensor =
    OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), values, shape)

/** Memory outside Java's heap, all zeros, which onnxruntime reads and writes in place. */
fun zeros(shape: LongArray): FloatBuffer = bytes(shape, 4).asFloatBuffer()

/** A cache of zeros of an input's type, which onnxruntime reads and writes in place. */
fun cache(type: OnnxJavaType, shape: LongArray): OnnxTensor {
    val environment = OrtEnvironment.getEnvironment()
    return when (type) {
        OnnxJavaType.FLOAT -> floats(zeros(shape), shape)
        OnnxJavaType.FLOAT16 -> OnnxTensor.createTensor(environment, bytes(shape, 2).asShortBuffer(), shape, type)
        OnnxJavaType.INT8 -> OnnxTensor.createTensor(environment, bytes(shape, 1), shape, type)
        else -> throw BundleException("keys and values of type $type are not known to this app")
    }
}

/** Write floats into a buffer. `Buffer`, because FloatBuffer has no position() of its own on older Androids. */
fun write(buffer: FloatBuffer, at: Int, values: FloatArray, from: Int, count: Int) {
    val plain: Buffer = buffer
    plain.position(at)
    buffer.put(values, from, count)
}

fun inputs(session: OrtSession): Map<String, TensorInfo> =
    session.inputInfo.entries.associate { (name, node) -> name to node.info as TensorInfo }

/** Return the values of an output, a copy. */
fun output(result: OrtSession.Result, name: String): FloatArray =
    (result.get(name).get() as OnnxTensor).floatBuffer.array()

/** Cut [values] into [count] rows of one length; return those from [first] until [end]. */
fun rows(values: FloatArray, count: Int, first: Int, end: Int): List<FloatArray> {
    val size = values.size / count
    return (first until end).map { values.copyOfRange(it * size, (it + 1) * size) }
}

private fun bytes(shape: LongArray, size: Int): ByteBuffer =
    ByteBuffer.allocateDirect(Math.toIntExact(shape.fold(size.toLong(), Long::times))).order(ByteOrder.nativeOrder())
