package edgedecode.app

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer

/**
 * Graphs for passes of fixed widths, by width, which take [context] past positions and return the new ones.
 *
 * Inputs: input_ids and position_ids, int64 [1, width]; attention_mask, and for layers with a sliding window
 * window_mask, float32 [1, 1, width, context + width], added to the scores; rows, int64; past_key_values.N.key and
 * .value, float32 [1, heads, context, size]. Outputs: logits, and present.N [1, heads, width, size].
 */
class FixedModel(sessions: Map<Int, OrtSession>, override val context: Int, private val window: Int = 0) :
    Model, AutoCloseable {
    override var length = 0
        private set

    /** Keys or values of one layer: the memory, and the tensor over it. */
    private class Past(val buffer: FloatBuffer, val shape: LongArray) {
        val tensor = floats(buffer, shape)
        val heads = shape[1].toInt()
        val size = shape[3].toInt()
    }

    private val sessions = sessions.toSortedMap()
    private val inputs = this.sessions.mapValues { inputs(it.value) }
    private val past = inputs.values.first().filterKeys { it.startsWith(PAST) }
        .mapValues { (_, info) -> Past(zeros(info.shape), info.shape) }

    /** In as few passes as the widths allow. */
    override fun read(tokens: List<Int>, scored: Int): List<FloatArray> {
        val found = mutableListOf<FloatArray>()
        var start = 0
        while (start < tokens.size) {
            val width = width(tokens.size - start, scored)
            val stop = minOf(tokens.size, start + width)
            val first = maxOf(start, tokens.size - scored) - start
            found += pass(tokens.subList(start, stop), width, first)
            start = stop
        }
        return found.takeLast(scored)
    }

    override fun crop(length: Int) {
        this.length = length
    }

    override fun close() {
        past.values.forEach { it.tensor.close() }
        sessions.values.forEach { it.close() }
    }

    /** Return the narrowest width that takes all rows, else the widest, of those with logits enough. */
    private fun width(rows: Int, scored: Int): Int {
        val able = sessions.keys.filter { it <= SCORED || scored == 1 }
        return able.firstOrNull { it >= rows } ?: able.last()
    }

    /** Run one pass, padded to [width]; return the logits of the rows from [first]. */
    private fun pass(tokens: List<Int>, width: Int, first: Int): List<FloatArray> {
        val count = tokens.size
        val wanted = maxOf(count - first, 0)
        val scored = if (width <= SCORED) width else 1
        val session = sessions.getValue(width)
        val own = mutableMapOf<String, OnnxTensor>()
        try {
            val wide = width.toLong()
            for ((name, info) in inputs.getValue(width)) {
                own[name] = when {
                    name == "input_ids" -> longs(LongArray(width) { tokens.getOrElse(it) { 0 }.toLong() }, 1, wide)
                    name == "position_ids" ->
                        longs(LongArray(width) { if (it < count) (length + it).toLong() else 0 }, 1, wide)
                    name == "rows" ->
                        longs(LongArray(scored) { if (it < wanted) (first + it).toLong() else 0 }, scored.toLong())
                    name == "attention_mask" -> mask(count, width, context + width)
                    name == "window_mask" -> mask(count, width, window)
                    name.startsWith("lora.") -> floats(zeros(info.shape), info.shape) // no adapter
                    else -> continue
                }
            }
            session.run(own + past.mapValues { it.value.tensor }).use { result ->
                for ((name, each) in past) keep(each, output(result, presentName(name)), width, count)
                length += count
                return rows(output(result, "logits"), scored, 0, wanted)
            }
        } finally {
            own.values.forEach { it.close() }
        }
    }

    /** Copy the first [count] new positions of each head behind the past. */
    private fun keep(past: Past, present: FloatArray, width: Int, count: Int) {
        for (head in 0 until past.heads) {
            val at = (head * context + length) * past.size
            write(past.buffer, at, present, head * width * past.size, count * past.size)
        }
    }

    /** Each row sees the past, itself and the rows before it, [window] positions in all. Padding sees itself. */
    private fun mask(count: Int, width: Int, window: Int): OnnxTensor {
        val line = context + width
        val mask = FloatArray(width * line) { HIDDEN }
        for (row in 0 until width) mask[row * line + context + row] = 0f
        for (row in 0 until count) {
            val start = row * line
            mask.fill(0f, start + minOf(length, maxOf(0, length + row - window + 1)), start + length)
            mask.fill(0f, start + context + maxOf(0, row - window + 1), start + context + row + 1)
        }
        return floats(FloatBuffer.wrap(mask), longArrayOf(1, 1, width.toLong(), line.toLong()))
    }

    private companion object {
        /** Mask value of a position that a row does not see. It fits 16-bit floats. */
        const val HIDDEN = -1e4f

        /** Widest pass of fixed width whose rows all get logits; wider ones give those of one row. */
        const val SCORED = 16
    }
}
