package edgedecode.app

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer

/**
 * A graph for passes of any number of rows, which writes keys and values into buffers of [context] positions.
 *
 * Inputs: input_ids and position_ids, int64 [1, rows]; seqlens_k, int32 [1], the position of the last row;
 * total_length, int32 [1]; attention_bias, float32 [1, 1, rows, total]; rows, int64: which rows get logits; and
 * past_key_values.N.key and .value. Its outputs present.N are the same buffers.
 */
class GrowingModel(private val session: OrtSession, override val context: Int) : Model, AutoCloseable {
    override var length = 0
        private set

    private val names = session.inputNames
    private val past: Map<String, OnnxTensor> = inputs(session).filterKeys { it.startsWith(PAST) }
        .mapValues { (_, info) -> cache(info.type, longArrayOf(1, info.shape[1], context.toLong(), info.shape[3])) }
    private val present = past.mapKeys { presentName(it.key) }

    /** In passes of at most [ROWS] rows, so that a long prompt takes no more memory than a short one. */
    override fun read(tokens: List<Int>, scored: Int): List<FloatArray> {
        var from = 0
        while (tokens.size - from > maxOf(ROWS, scored)) {
            val count = minOf(ROWS, tokens.size - from - scored)
            pass(tokens.subList(from, from + count), scored = 1)
            from += count
        }
        return pass(tokens.subList(from, tokens.size), scored)
    }

    private fun pass(tokens: List<Int>, scored: Int): List<FloatArray> {
        val count = tokens.size
        val total = length + count
        val rows = count.toLong()
        val bias = longArrayOf(1, 1, rows, total.toLong())
        val own = mapOf(
            "input_ids" to { longs(LongArray(count) { tokens[it].toLong() }, 1, rows) },
            "position_ids" to { longs(LongArray(count) { (length + it).toLong() }, 1, rows) },
            "seqlens_k" to { ints(intArrayOf(total - 1), 1) },
            "total_length" to { ints(intArrayOf(total), 1) },
            "attention_bias" to { floats(FloatBuffer.allocate(count * total), bias) },
            "rows" to { longs(LongArray(scored) { (count - scored + it).toLong() }, scored.toLong()) },
        ).filterKeys { it in names }.mapValues { it.value() }
        try {
            // The past goes in and comes out as the same tensors: the graph appends to them in place.
            session.run(own + past, setOf("logits"), present).use { result ->
                length = total
                return rows(output(result, "logits"), scored, 0, scored)
            }
        } finally {
            own.values.forEach { it.close() }
        }
    }

    /** What lies behind is overwritten by the next pass. */
    override fun crop(length: Int) {
        this.length = length
    }

    override fun close() {
        past.values.forEach { it.close() }
        session.close()
    }

    private companion object {
        const val ROWS = 32
    }
}
