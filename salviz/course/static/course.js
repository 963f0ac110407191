// The course's widgets.
export default {render() {}};
